"""A process of the training outlived it.

What it means
The training was over or was killed, and a process of its group still ran, or could not be ended.

How we know
All processes of the training share one process group, which is looked at after the end and then
ended by SIGKILL. On cards, NVML's list of processes is looked at too.

Why it matters
A process that survives SIGKILL hangs in a system call of the driver. It keeps its card, and everyone
who asks the driver next may hang as well.

What to do
ps -o pid,stat,wchan,cmd shows state D for such a process. Read the kernel log (Xid, "blocked for
more than 120 seconds"), stop new jobs, and restart the machine.

When it is wrong
A driver under heavy load may need longer than five seconds to let go of an ended process. From inside a
container NVML's numbers are those of the host: then it is a warning, and the process may be another's.

Sources
https://github.com/leptonai/gpud/pull/117 (processes in uninterruptible sleep after a fault)
https://github.com/NVIDIA/NVSentinel/issues/1576 (driver calls that never return)
"""
