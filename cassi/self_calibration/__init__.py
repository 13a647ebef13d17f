"""Level 3: the camera from its own snapshots of unknown scenes.

`search` puts all together: where and how sharp the mask is (`pose`), dead and warm pixels (`defects`), and the error of
the mask's elements (`elements_of_one` capture, or `elements_of_several`). What is found is a `found_camera`;
`refined_camera` compares that of several captures with those of each.
"""
