"""A real Kubernetes on one machine: built, started and stopped by the tests themselves.

The modules, from the bottom: `settings` (paths, addresses), `shell` (commands and waiting), `processes` (start, record, stop),
`archive` (image files), `parts` (what is built, once), `certificates`, `network`, `node`, `control_plane`, `addons`, `docker`
(image builds), `s3`, and `cluster`, which puts them together. `python -m testbed` is the command line behind `make cluster`.
"""
