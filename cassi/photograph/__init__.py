"""A photograph of the scene from beside the camera: registered, weighed, and solved together with the snapshot."""
