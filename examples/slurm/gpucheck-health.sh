#!/bin/sh
# Slurm's health check and prolog: drains a node whose GPUs are bad, with the reason.
#
# In slurm.conf, after copying this file to every node:
#   HealthCheckProgram=/etc/slurm/gpucheck-health.sh
#   HealthCheckInterval=300
#   HealthCheckNodeState=IDLE,CYCLE
#   Prolog=/etc/slurm/gpucheck-health.sh
#
# Only exit code 1 of gpucheck, a bad machine, drains. Where the check could not be made (3), or the policy cannot
# be read (2), the node stays in service and the log says so. A node that is drained already keeps its reason.
# In a prolog a bad machine also ends the script with 1, so that Slurm queues the job again: held, unless slurm.conf
# has SchedulerParameters=nohold_on_prolog_fail.
# It ends well before the 60 seconds after which Slurm would kill it.
set -u

# Slurm starts health checks with an empty environment.
PATH=${PATH:+$PATH:}/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
GPUCHECK=${GPUCHECK:-/usr/local/bin/gpucheck}
POLICY=${GPUCHECK_POLICY:-/etc/gpucheck.toml}
node=${SLURMD_NODENAME:-$(hostname -s)}
job=${SLURM_JOB_ID:-}

say() {
  echo "gpucheck: $1" >&2
  if command -v logger >/dev/null 2>&1; then
    logger -t gpucheck -- "$1" 2>/dev/null || :
  fi
}

# What is expected here is the whole node, not the part of it that one job was given.
unset SLURM_JOB_ID SLURM_JOB_GPUS SLURM_STEP_GPUS SLURM_GPUS SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE
unset CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ROCR_VISIBLE_DEVICES

set -- check --no-smoke
if [ -n "${GPUCHECK_POLICY:-}" ] || [ -e "$POLICY" ]; then
  set -- "$@" --policy "$POLICY"
else
  # A node of the cluster that has no GPU in its Gres needs none; what is in it is looked at all the same.
  gres=$(timeout 5 scontrol --oneliner show node "$node" 2>/dev/null | sed -n 's/.* Gres=\([^ ]*\).*/\1/p')
  case $gres in
    "" | *gpu* | *shard* | *mps*) ;;
    *) set -- "$@" --expect-gpus 0 ;;
  esac
fi
cd / || exit 0
# One long line: its first word is the verdict, the rest is the headline.
answer=$(COLUMNS=2000 timeout 35 "$GPUCHECK" "$@" 2>&1)
code=$?
line=$(printf '%s\n' "$answer" | sed -n '/^fail  /{p;q;}')

case $code:$line in
  0:*)
    exit 0
    ;;
  1:fail*) # and not 1 alone: a Python that cannot start ends with that too
    reason=$(printf '%s' "$line" | sed 's/^fail  *//' | LC_ALL=C tr -cd ' -~' | tr -d "\"'\`\\\\" | cut -c 1-250)
    state=$(timeout 5 scontrol --oneliner show node "$node" 2>/dev/null | sed -n 's/.* State=\([^ ]*\).*/\1/p')
    case $state in
      *DRAIN*)
        say "$node is bad and drained already: $reason"
        ;;
      *)
        if scontrol update "NodeName=$node" State=DRAIN "Reason=gpucheck: $reason"; then
          say "$node is drained: $reason"
        else
          say "$node is bad, but Slurm would not drain it: $reason"
        fi
        ;;
    esac
    if [ -n "$job" ]; then
      exit 1
    fi
    exit 0
    ;;
  *)
    say "$node was not checked (exit code $code), and stays as it is: $(printf '%s\n' "$answer" | sed -n 1p)"
    exit 0
    ;;
esac
