"""The help of every command: what it does, and examples; {reconstruct} in them is that command as it is typed."""

# fmt: off
HELP: dict[str, tuple[str, str]] = {
    "reconstruct": ("Reconstruct a spectral cube from a coded-aperture snapshot: file in, file and figures out.", """
  a file that holds measurement and mask; writes m_cube.h5 and m_figures/ beside it
      {reconstruct} --measurement m.h5
  snapshot and mask in separate files, with a known number of bands
      {reconstruct} --measurement scene.mat --mask mask.mat --num-bands 28 --wavelengths 450:650:28
  only look: what the files hold, which bands and step fit, what would be done
      {reconstruct} --measurement scene.mat --mask mask.mat --dry-run
  raw counts of a calibrated camera; the calibration holds all the rest
      {reconstruct} --calibration calibration.h5 --measurement snapshot.png
  with a photograph of the same scene, which may be displaced, rotated and of another size
      {reconstruct} --measurement m.h5 --side photo.png
  a folder, files or a stack of snapshots: one cube each; the same command resumes an interrupted run
      {reconstruct} --measurement night7/ --mask mask.h5 --output night7_cubes/
  four shots of one scene, each through its own mask
      {reconstruct} --measurement shot?.h5 --mask mask?.h5
  a sequence, each frame solved together with its neighbors: one cube with a time axis, and a film
      {reconstruct} --sequence --measurement video.h5 --mask mask.h5
  the result as one page to look at in a browser
      {reconstruct} --measurement m.h5 --report
"""),
    "calibrate": ("Calibrate a camera from frames: dark, flat, and the coded aperture at known wavelengths.", """
  a folder with files dark_*, flat_*, mask_* and wavelengths.txt; PNG, TIFF, HDF5, .npy, .mat ...
      {calibrate} bench --output calibration.h5
  without calibration frames, from captures of different scenes: where and how sharp the mask really is
      {calibrate} refine --help
"""),
    "refine": ("Refine a camera from captures of different scenes: where and how sharp the mask really is.", """
  three captures by one camera, and its mask as it was measured or designed
      {calibrate} refine --measurement night7/*.mat --mask mask.mat --output camera.h5
"""),
    "simulate": ("Simulate a coded-aperture snapshot, of a spectral cube or a painted scene, with noise.", """
  a painted still life, 256 x 256 pixels and 28 bands, through a random mask, without noise
      {simulate} --output scene.h5
  the same with a 12-bit camera: 10,000 electrons in the brightest pixel, read noise of 5 electrons
      {simulate} --full-well 10000 --read-noise 5 --bit-depth 12 --output noisy.h5
  the last 28 bands of a cube of your own through a mask of your own, dispersed to the left
      {simulate} --cube cloth.mat --num-bands 28 --mask mask.mat --step -2 --output cloth.h5
  sixteen frames of a scene that moves by 0.8 pixels a frame, to be reconstructed with --sequence
      {simulate} --frames 16 --full-well 10000 --output film.h5
  frames for a calibration, captured on a simulated optical bench, and a snapshot: 12-bit PNG in a folder
      {simulate} --bench bench

The output holds /measurement, /mask, /shifts, /wavelengths and the truth /cube.
The same seed gives the same scene, mask and noise.
"""),
    "view": ("Look at a result in the browser.", """
  {view} m_cube.h5
  on a machine without a browser; another one connects by ssh -L 8000:127.0.0.1:8000
      {view} m_cube.h5 --no-browser --port 8000
"""),
    "spectra": ("Write the spectra of places and regions of results as a table, with error bars.", """
  a pixel, and the mean of 5 x 5 pixels, which gets a name; without --csv the table is printed
      {spectra} m_cube.h5 --at 120,85 leaf=40,60,5
  regions drawn in a report, of all results in a folder
      {spectra} night7_cubes/ --regions m-regions.json --csv spectra.csv --figure spectra.pdf
"""),
    "export": ("Write a result to another format; turned, or at other wavelengths.", """
  {export} m_cube.h5 m_cube.hdr
  {export} m_cube.h5 upright.mat --turn-result 180
  all results in a folder, at 500 to 600 nm every 5 nm
      {export} night7_cubes/ night7_tif/ --format tif --output-bands 500:600:5
"""),
    "compare": ("Compare a result with the truth, another result, or a spectrometer; the second is the reference.", """
  the error against the truth in the same file, or in another file
      {compare} m_cube.h5
      {compare} m_cube.h5 truth.h5
      {compare} tv_cube.h5 auto_cube.h5 --figure difference.png
      {compare} calibrated_cube.h5 bench/truth.h5 --fit-scale
  is the spectrum right? Row 120, column 85, the mean of 5 x 5 pixels; or regions drawn in the report
      {compare} m_cube.h5 leaf.csv --at 120,85,5 --figure leaf.pdf
      {compare} m_cube.h5 leaf.csv --regions m-regions.json --csv spectra.csv
"""),
    "design": ("Which camera to build: simulate and reconstruct a grid of cameras; a stopped run continues.", """
      {design}
      {design} --step 2 --mask-element 1,2,4 --bands 28 --electrons 1e4 --scenes my_cubes/ --output study
"""),
    "warm-up": ("Compile the kernels now, once for a machine, so that no reconstruction waits for it.", """
      {warm-up}
      {warm-up} --device cuda
"""),
}
# fmt: on
