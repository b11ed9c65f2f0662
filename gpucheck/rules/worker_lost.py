"""A worker on another host never came, or was lost in the training.

What it means
A training on several hosts needs all of them in every step. The worker that is named could not be
reached before the training, or its process ended, or it fell silent, while the others were training.

How we know
Before TensorFlow starts, every worker opens a TCP connection to every other, at the address and port
that TensorFlow will use, and says who it is. Over these connections each gives a sign of life every
second. One that is closed without a goodbye, 15 seconds of silence, or the message that the training
there ended early, is the loss.

Why it matters
TensorFlow by itself waits for a missing worker for many minutes, whatever limits it is given, and
ignores SIGTERM meanwhile: the job looks alive and does nothing.

What to do
Look at the worker that is named: whether it was started at all, how its process ended (memory, time
limit of the job, kernel log), and whether its port can be reached from the others. Under Slurm use
srun --kill-on-bad-exit (-K): without it the other tasks are left waiting when one ends.

When it is wrong
A worker that starts later than half the time of --timeout counts as missing; give more time where
images or modules load slowly. A firewall that lets gpucheck's connections pass and cuts them later
looks like a lost worker.

Sources
https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras
https://slurm.schedmd.com/srun.html
"""
