"""A photograph of the scene by a second camera: registration, response, and joint reconstruction."""
