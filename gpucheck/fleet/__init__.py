"""Many machines: collect writes files, report reads them; the folder between them is all that they share.

:mod:`~gpucheck.fleet.collect` asks hosts through SSH, Slurm or on this machine and puts a capture of each into a
folder; :mod:`~gpucheck.fleet.report` reads such a folder, or any folder of captures, and makes ``gpucheck/fleet/1``
of it. :mod:`~gpucheck.fleet.store` describes the folder.
"""
