#!/bin/sh
# Collects what gpucheck reads of a server into one archive, on a host that has no Python.
# Needs a POSIX shell, awk, sed, od and tar. Changes nothing and sends nothing: read it first.
#
# The archive holds a tree (sys, proc, dev, ...) and commands/manifest, whose lines are
#   root yes|no
#   redacted yes|no
#   unreadable CODE PATH                 what reading the path raised
#   command STATUS STDOUT STDERR LINE    where in the archive its output lies
#   timed-out LINE
#   environment                          the lines below were looked for
#   variable NAME VALUE
#   packages FOLDER                      where a Python has its packages; the best first

set -u
umask 077
LC_ALL=C
export LC_ALL
PATH=$PATH:/usr/sbin:/sbin

usage() {
    cat <<'END'
usage: sh capture.sh [--ipmi] [--no-redact] [--root FOLDER] [FILE]

Writes FILE (gpucheck-capture.tar.gz in the current folder), which another computer reads:
    gpucheck probe --from gpucheck-capture.tar.gz

  --ipmi         also ask the BMC for the power supplies (ipmitool; takes minutes, needs root)
  --no-redact    keep serial numbers, UUIDs, addresses and names
  --root FOLDER  read another system that is mounted there; no program is asked then
END
}

note() { printf 'capture.sh: %s\n' "$*" >&2; }

fail() {
    note "$*"
    exit 2
}

redact=yes ipmi=no root='' target=''
while [ $# -gt 0 ]; do
    case $1 in
    --ipmi) ipmi=yes ;;
    --no-redact) redact=no ;;
    --root)
        [ $# -gt 1 ] || fail "--root needs a folder"
        shift
        root=$(cd -P "$1" 2>/dev/null && pwd) || fail "$1: no such folder"
        root=${root%/}
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    -?*) fail "$1: no such option (see --help)" ;;
    *)
        [ -z "$target" ] || fail "one FILE only"
        target=$1
        ;;
    esac
    shift
done
packer=gzip
command -v gzip >/dev/null 2>&1 || packer=''
: "${target:=gpucheck-capture.tar${packer:+.gz}}"
if [ -e "$target" ] || [ -h "$target" ]; then
    fail "$target is there already: name a new file"
fi
case $target in
*/*) [ -d "${target%/*}/" ] || fail "${target%/*}: no such folder" ;;
esac
for tool in awk sed od tar mktemp; do
    command -v $tool >/dev/null 2>&1 || fail "$tool is missing on this host"
done

work=$(mktemp -d) || fail "no folder for temporary files"
part=''
trap 'rm -rf "$work" ${part:+"$part"}' EXIT
trap 'exit 1' HUP INT TERM
tree=$work/gpucheck-capture
manifest=$tree/commands/manifest
mkdir -p "$tree/commands"
am_root=no
[ "$(id -u)" != 0 ] || am_root=yes
printf 'root %s\nredacted %s\n' "$am_root" "$redact" >"$manifest"

# --- redaction ---------------------------------------------------------------------------------
# The same kinds as in gpucheck's own captures, but with plain zeros and words as stand-ins: they say
# nothing across captures. Serial numbers are counted, so that equal ones stay equal.

names=''
if [ -z "$root" ]; then
    host=$(uname -n)
    # shellcheck disable=SC2086 # split on purpose
    for name in "$host" "${host%%.*}" "$(id -un 2>/dev/null)" "${SUDO_USER:-}"; do
        case $name in
        ?? | ? | '' | *[!A-Za-z0-9._-]*) ;;
        root | user | admin | localhost | server | node | linux | kernel | gpu | nvidia | debian | ubuntu | cpu | pci | mem | bar | usb | eth0) ;;
        *) names="$names $name" ;;
        esac
    done
fi

# Without a label they would be missed in the kernel log.
for path in product_serial board_serial chassis_serial chassis_asset_tag; do
    name=''
    [ ! -r "$root/sys/class/dmi/id/$path" ] || read -r name <"$root/sys/class/dmi/id/$path"
    case $name in
    ???? | ??? | ?? | ? | '' | *[!A-Za-z0-9._-]* | *123456789* | 00000*) ;;
    *[0-9]*) names="$names $name" ;;
    esac
done

write_rules() {
    h='[0-9A-Fa-f]'
    o='(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])'
    dot=$(printf '\001')
    for name in $names; do
        name=$(printf '%s' "$name" | sed 's/\./\\./g')
        printf '%s\n' "s/(^|[^A-Za-z0-9])$name([^A-Za-z0-9]|\$)/\\1name\\2/g" \
            "s/(^|[^A-Za-z0-9])$name([^A-Za-z0-9]|\$)/\\1name\\2/g"
    done
    cat <<END
s/(Linux version [^ ]* \\()[^ ()@]+@[^ ()]+/\\1user@host/g
s/([Hh]ostname (set )?to <)[^>]+/\\1host/g
s/(hostname=)[A-Za-z0-9._-]+/\\1host/g
s/(^| )(ip=([^ :]*:){4})[^ :]+/\\1\\2host/g
s#/(home|Users)/[^/ :"']+#/\\1/user#g
s/(acct=")[^"]+/\\1user/g
s#(/by-id/[a-z]+-)[^ ,;:)"']+#\\1disk#g
s/(iqn\\.[0-9]{4}-[0-9]{2}\\.)[^ ,"']+/\\1name/g
s/(([Pp]assword|PASSWORD|[Pp]asswd|[Pp]assphrase|[Ss]ecret|[Tt]oken)=)[^ ,&]+/\\1removed/g
s#(<serial>)[^<]+#\\1removed#g
s/$h{8}([-_])$h{4}[-_]$h{4}[-_]$h{4}[-_]$h{12}/00000000\\10000\\10000\\10000\\1000000000000/g
s/(UUID=)($h{4}-$h{4}|$h{8}-$h{2}|$h{16})([^0-9A-Za-z]|\$)/\\10000-0000\\3/g
s/(^|[^0-9A-Za-z:-])$h{2}(:$h{2}){5,}([^0-9A-Za-z:-]|\$)/\\100:00:00:00:00:00\\3/g
s/(^|[^0-9A-Za-z:-])$h{2}(-$h{2}){5,}([^0-9A-Za-z:-]|\$)/\\100-00-00-00-00-00\\3/g
s/([Gg][Uu][Ii][Dd][^0-9A-Fa-f]{1,40})$h{4}(:$h{4}){3}/\\10000:0000:0000:0000/g
s/(^|[^0-9A-Za-z:])$h{8}(:$h{8}){3}([^0-9A-Za-z:]|\$)/\\100000000:00000000:00000000:00000000\\3/g
s/(^|[^0-9A-Za-z])([0-9a-f]{64}|[0-9a-f]{32})([^0-9A-Za-z]|\$)/\\100000000000000000000000000000000\\3/g
s/0x5[0-9a-f]{15}([^0-9A-Za-z]|\$)/0x5000000000000000\\1/g
s/((naa|eui)\\.)[0-9a-f]{16,32}/\\10000000000000000/g
s/((^|[^A-Za-z])([Vv]er(sion)?|VERSION|[Ff]irmware|F[Ww]|fw|[Dd]river|[Rr]ev(ision)?|[Rr]elease|BIOS|[Bb]ios)[^0-9A-Za-z]{0,5}[0-9]+)\\./\\1$dot/g
s/((Version|Firmware|Driver)[^0-9A-Za-z]{0,5}[0-9]+)\\./\\1$dot/g
s/(^|[^0-9A-Za-z_.])$o(\\.$o){3}(\\.?([^0-9A-Za-z_.-]|\$))/\\10.0.0.0\\5/g
s/(^|[^0-9A-Za-z_.])$o(\\.$o){3}(\\.?([^0-9A-Za-z_.-]|\$))/\\10.0.0.0\\5/g
s/$dot/./g
s/(^|[^0-9A-Za-z:.])$h{1,4}(:$h{1,4}){7}([^0-9A-Za-z:.]|\$)/\\1::\\3/g
s/(^|[^0-9A-Za-z:.])($h{1,4}:){1,7}(:$h{1,4}){1,7}([^0-9A-Za-z:.]|\$)/\\1::\\4/g
END
}

# Serial numbers behind their label: each value gets a number of its own.
# "Serial: 8250/16550 driver" is what the driver of the serial ports says.
number_serials() {
    awk '
    function secret(text) {
        if (text ~ /^(Not Specified|To Be Filled.*|Default string|None|N\/A|Unknown|0+)$/) return text
        if (!(text in known)) known[text] = sprintf("S%07d", ++count)
        return known[text]
    }
    {
        line = $0
        done = ""
        while (match(line, /([Ss]erial|SERIAL)([ _-]?([Nn]umber|[Nn]um|[Nn]o|NUMBER))?[ \t]*[:=(#][ \t]*"?|([Aa]sset|[Ss]ervice)[ _-]?[Tt]ag[ \t]*[:=][ \t]*/)) {
            done = done substr(line, 1, RSTART + RLENGTH - 1)
            begins = (done ~ /^[ \t]*([A-Za-z]+[ \t]+)*[A-Za-z]+[ \t]*:[ \t]*$/)
            line = substr(line, RSTART + RLENGTH)
            if (line ~ /^8250/) continue
            if (begins) {
                sub(/[ \t\r]+$/, "", line)
                match(line, /.*/)
            } else if (!match(line, /^[^ \t,;)"]+/)) continue
            if (RLENGTH < 4 && !begins) continue
            if (RLENGTH > 0) done = done secret(substr(line, 1, RLENGTH))
            line = substr(line, RLENGTH + 1)
        }
        print done line
    }'
}

clean() {
    if [ $redact = yes ]; then
        number_serials | sed -E -f "$work/rules"
    else
        cat
    fi
}
write_rules >"$work/rules"

# The SMBIOS table: serial numbers and asset tags become 0, X and x, the UUID zeros; records that the
# standard does not lay out, and OEM strings, are blanked. Every length stays.
clean_table() {
    if [ $redact = no ]; then
        cat
        return
    fi
    od -An -v -tu1 | awk '
    BEGIN {
        secret[1] = "7"; secret[2] = secret[3] = "7 8"; secret[4] = "32 33"; secret[17] = "24 25"; secret[39] = "8 9"
        split("0 1 2 3 4 5 6 7 8 9 13 16 17 18 19 20 21 32 38 39 41 127", list, " ")
        for (i in list) kept[list[i]] = 1
    }
    { for (i = 1; i <= NF; i++) b[n++] = $i }
    function hide(string,  i) {
        for (i = first[string]; i < last[string]; i++) {
            if (b[i] >= 48 && b[i] <= 57) b[i] = 48
            else if (b[i] >= 65 && b[i] <= 90) b[i] = 88
            else if (b[i] >= 97 && b[i] <= 122 || b[i] > 127) b[i] = 120
        }
    }
    END {
        s = 0
        while (s + 4 <= n) {
            kind = b[s]; size = b[s + 1]
            if (size < 4 || s + size > n) break
            end = s + size
            while (end + 1 < n && !(b[end] == 0 && b[end + 1] == 0)) end++
            if (end + 1 >= n) end = n
            strings = 0
            from = s + size
            for (i = from; i <= end; i++) if (i == end || b[i] == 0) {
                if (i > from) { strings++; first[strings] = from; last[strings] = i }
                from = i + 1
            }
            fields = (kind in secret) ? split(secret[kind], offsets, " ") : 0
            for (j = 1; j <= fields; j++) {
                o = offsets[j] + 0
                # Maker and product stay, also where firmware names them as the serial number.
                if (o < size && b[s + o] <= strings && (kind > 3 || (b[s + o] != b[s + 4] && b[s + o] != b[s + 5]))) hide(b[s + o])
            }
            if (kind == 1 && size >= 24) for (i = 8; i < 24; i++) b[s + i] = 0
            if (!(kind in kept)) {
                for (i = s + 4; i < s + size; i++) b[i] = 0
                for (j = 1; j <= strings; j++) for (i = first[j]; i < last[j]; i++) b[i] = 120
            }
            s = end + 2
            if (kind == 127) break
        }
        for (i = s + 4; i < n; i++) b[i] = 0
        for (i = 0; i < n; i++) {
            printf "\\%03o", b[i]
            if (i % 64 == 63) print ""
        }
        print ""
    }' | octal
}

octal() {
    while read -r line; do
        # shellcheck disable=SC2059 # the line is the format: octal escapes
        printf "$line"
    done
}

# Registers of a bridge, with zeros where it tells its serial number (extended capability 3).
clean_config() {
    od -An -v -tu1 | awk '
    { for (i = 1; i <= NF; i++) b[n++] = $i }
    END {
        o = 256
        for (steps = 0; steps < 256 && o >= 256 && o + 12 <= n; steps++) {
            if (b[o] == 3 && b[o + 1] == 0) {
                for (i = 4; i < 12; i++) b[o + i] = 0
                break
            }
            o = b[o + 3] * 16 + int(b[o + 2] / 64) * 4
        }
        for (i = 0; i < n; i++) {
            printf "\\%03o", b[i]
            if (i % 64 == 63) print ""
        }
        print ""
    }' | octal
}

# --- files -------------------------------------------------------------------------------------

# place PATH: make the folder that the file goes to.
place() { mkdir -p "$tree${1%/*}"; }

# take PATH [FILTER...]: copy a file; what is there and cannot be read is noted.
take() {
    path=$1
    shift
    [ -e "$root$path" ] || return 0
    place "$path"
    if cat "$root$path" >"$work/taken" 2>/dev/null; then
        "${@:-cat}" <"$work/taken" >"$tree$path"
    elif [ -r "$root$path" ]; then
        printf 'unreadable EIO %s\n' "$path" >>"$manifest"
    else
        printf 'unreadable EACCES %s\n' "$path" >>"$manifest"
    fi
}

# lines FROM TO: copy a small text file without starting a program; sets class from PCI_CLASS.
lines() {
    [ -r "$1" ] || return 1
    while IFS= read -r line; do
        case $line in PCI_CLASS=*) class=${line#*=} ;; esac
        printf '%s\n' "$line"
    done <"$1" >"$2" 2>/dev/null
}

# link FOLDER PATH: a link to a folder, whose target is made.
link() {
    [ -d "$root$1" ] || return 0
    real=$(cd -P "$root$1" 2>/dev/null && pwd) || return 0
    real=${real#"$root"}
    mkdir -p "$tree$real"
    [ "$real" = "$2" ] || ln -s "$real" "$tree$2"
}

take_pci_function() {
    from=/sys/bus/pci/devices/$1
    link "$from" "$from"
    into=$tree$real
    class=''
    here=$real
    if ! lines "$root$from/uevent" "$into/uevent"; then
        for name in vendor device class subsystem_vendor subsystem_device; do
            lines "$root$from/$name" "$into/$name"
        done
        link "$from/driver" "$here/driver"
        [ ! -r "$root$from/class" ] || read -r class <"$root$from/class"
        class=${class#0x}
        class=${class#0}
    fi
    # Displays, accelerators and bridges: link, addresses, errors, and the header of configuration space.
    case $class in
    3???? | 604?? | 680?? | 1200??) ;;
    *) return ;;
    esac
    for name in numa_node boot_vga resource current_link_width max_link_width current_link_speed max_link_speed \
        aer_dev_correctable aer_dev_nonfatal aer_dev_fatal power_state; do
        lines "$root$from/$name" "$into/$name"
    done
    case $class in
    604??) [ ! -r "$root$from/config" ] || clean_config <"$root$from/config" >"$into/config" ;;
    *) [ ! -r "$root$from/config" ] || dd if="$root$from/config" of="$into/config" bs=64 count=1 2>/dev/null ;;
    esac
    for name in physfn iommu_group; do
        link "$from/$name" "$here/$name"
    done
    [ ! -r "$root$from/iommu_group/type" ] || lines "$root$from/iommu_group/type" "$tree$real/type"
    # What the drivers of AMD and Intel tell; never serial numbers.
    case $class in 3???? | 1200??) ;; *) return ;; esac
    for name in product_name mem_info_vram_total gpu_busy_percent; do
        lines "$root$from/$name" "$into/$name"
    done
    for limit in "$root$from"/hwmon/*/power1_cap "$root$from"/hwmon/*/power1_max; do
        [ -r "$limit" ] || continue
        place "$here/${limit#"$root$from"/}"
        lines "$limit" "$into/${limit#"$root$from"/}"
    done
}

if [ -d "$root/sys/bus/pci/devices" ]; then
    mkdir -p "$tree/sys/bus/pci/devices"
    for device in "$root"/sys/bus/pci/devices/*; do
        [ ! -d "$device" ] || take_pci_function "${device##*/}"
    done
fi
for slot in "$root"/sys/bus/pci/slots/*; do
    take "${slot#"$root"}/address"
done

take /sys/firmware/dmi/tables/DMI clean_table
take /sys/firmware/dmi/tables/smbios_entry_point
for name in bios_vendor bios_version bios_date sys_vendor product_name product_version product_sku board_vendor \
    board_name chassis_type; do
    take /sys/class/dmi/id/$name
done
for folder in /sys/firmware /sys/devices/system/node; do
    for inside in "$root$folder"/*/; do
        [ ! -d "$inside" ] || mkdir -p "$tree${inside#"$root"}"
    done
    [ ! -d "$root$folder" ] || mkdir -p "$tree$folder"
done
for path in /sys/devices/system/node/has_cpu /sys/hypervisor/type /sys/module/nvidia/version /proc/meminfo \
    /proc/sys/kernel/osrelease /proc/driver/nvidia/version; do
    take $path
done
for path in /proc/cpuinfo /proc/cmdline /proc/version /proc/1/cgroup; do
    take $path clean
done
take /proc/modules sed 's/0x[0-9a-f]*/0x0/g'
if [ ! -r "$root/proc/modules" ] && [ -d "$root/sys/module" ]; then
    mkdir -p "$tree/sys/module"
    for module in nvidia nvidia_uvm nvidia_modeset nvidia_drm nouveau vfio_pci amdgpu radeon i915 xe ast mgag200; do
        [ ! -d "$root/sys/module/$module" ] || mkdir -p "$tree/sys/module/$module"
    done
fi
for path in "$root"/proc/driver/nvidia/params "$root"/proc/driver/nvidia/gpus/*/information; do
    take "${path#"$root"}" clean
done
for path in /.dockerenv /run/.containerenv; do
    if [ -e "$root$path" ]; then
        place $path
        : >"$tree$path"
    fi
done

# Names alone: device files, NVIDIA's libraries, kernel modules that were built on this host.
names_in() {
    [ -d "$root$1" ] || return 0
    mkdir -p "$tree$1"
    for path in "$root$1"/$2; do
        [ ! -e "$path" ] || [ -d "$path" ] || : >"$tree$1/${path##*/}"
    done
}
names_in /dev 'nvidia*'
for folder in /usr/lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu/nvidia/current /usr/lib/aarch64-linux-gnu \
    /usr/lib/aarch64-linux-gnu/nvidia/current /usr/lib64 /usr/lib /usr/local/nvidia/lib64 /usr/lib/wsl/lib; do
    names_in $folder 'libnvidia-ml.so*'
done
# Of the running kernel, and of the others: the driver may be built for one of those alone.
for modules in /lib/modules /usr/lib/modules; do
    [ -d "$root$modules" ] || continue
    # Mostly one is a link to the other.
    [ $modules = /lib/modules ] || [ ! -h "$root/lib" ] || continue
    for folder in "$root$modules"/*/; do
        folder=${folder#"$root"}
        folder=${folder%/}
        [ -d "$root$folder" ] || continue
        mkdir -p "$tree$folder"
        take "$folder/modules.dep" sed -n 's/^\([^:]*nvidia[^:]*:\).*/\1/p'
        for built in updates/dkms extra extra/nvidia; do
            names_in "$folder/$built" 'nvidia*.ko*'
        done
    done
done
if [ -d "$root/etc/modprobe.d" ]; then
    mkdir -p "$tree/etc/modprobe.d"
    for path in "$root"/etc/modprobe.d/*.conf; do
        take "${path#"$root"}" awk '/nvidia|nouveau/'
    done
fi
take /sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
# Whether the fabric manager runs, which servers with NVSwitches need.
[ ! -d "$root/run" ] || mkdir -p "$tree/run"
for folder in /run /run/nvidia/driver/run; do
    file=$folder/nvidia-fabricmanager/nv-fabricmanager.pid
    take $file
    pid=''
    [ ! -r "$root$file" ] || read -r pid <"$root$file"
    case $pid in
    '' | *[!0-9]*) ;;
    *) take "/proc/$pid/comm" ;;
    esac
done

# --- environment and Python --------------------------------------------------------------------
# Named variables alone: others may hold secrets. Of packages and CUDA libraries the names.

cuda='cudart cublas cublasLt cudnn cufft curand cusolver cusparse nccl nvJitLink'

# names_at FOLDER PATTERN...: like names_in, for a folder that may lie in a person's home.
names_at() {
    from=$1
    [ -d "$from" ] || return 0
    into=$tree$(printf '%s\n' "$from" | clean)
    shift
    mkdir -p "$into"
    for pattern in "$@"; do
        for path in "$from"/$pattern; do
            [ ! -e "$path" ] || : >"$into/${path##*/}"
        done
    done
}

# The loader's cache keeps a name as the end of a path that ends with it.
cuda_names() {
    tr '\000' '\n' | awk '{ sub(/.*\//, "") } /^lib(cudart|cublas|cublasLt|cudnn|cufft|curand|cusolver|cusparse|nccl|nvJitLink)\.so\.[0-9.]+$/'
}

packages_in() {
    [ -d "$1" ] || return 0
    names_at "$1" 'tensorflow*-info' 'tf_*-info' 'intel_tensorflow*-info' 'keras-*-info' 'nvidia_cu*-info' \
        'nvidia_nccl*-info' 'nvidia_nvjitlink*-info' 'nvidia_tensorflow*-info'
    printf 'packages %s\n' "$1" | clean >>"$manifest"
    build=tensorflow/python/platform/build_info.py
    if [ -r "$1/$build" ]; then
        mkdir -p "$into/${build%/*}"
        cat "$1/$build" >"$into/$build"
    fi
}

# libraries_in FOLDER: names of CUDA libraries.
libraries_in() {
    for stem in $cuda; do
        names_at "$1" "lib$stem.so.*"
    done
}

if [ -z "$root" ]; then
    echo environment >>"$manifest"
    for name in CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES \
        ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES GPU_DEVICE_ORDINAL SLURM_JOB_ID SLURM_JOB_GPUS SLURM_STEP_GPUS \
        SLURM_GPUS SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_NTASKS SLURM_JOB_NUM_NODES \
        NCCL_P2P_DISABLE LD_LIBRARY_PATH XLA_FLAGS TF_XLA_FLAGS TF_MIN_GPU_MULTIPROCESSOR_COUNT \
        TF_FORCE_GPU_ALLOW_GROWTH TF_GPU_ALLOCATOR TF_USE_LEGACY_KERAS TF_CPP_MIN_LOG_LEVEL TF_CONFIG \
        KUBERNETES_SERVICE_HOST; do
        eval "given=\${$name+yes} value=\${$name-}"
        [ -n "$given" ] || continue
        case $name in TF_CONFIG | KUBERNETES_SERVICE_HOST) value='set' ;; esac
        [ $redact = no ] || value=$(printf '%s' "$value" | sed -E 's/GPU-[0-9A-Fa-f-]+/GPU-00000000-0000-0000-0000-000000000000/g')
        printf 'variable %s %s\n' "$name" "$(printf '%s' "$value" | tr '\n' ' ')" | clean >>"$manifest"
    done
    base=${VIRTUAL_ENV:-${CONDA_PREFIX:-}}
    if [ -n "$base" ]; then
        set -- "$base"/lib/python3*/site-packages
        libraries_in "$base/lib"
    else
        set -- "${HOME:-/root}"/.local/lib/python3*/site-packages /usr/local/lib/python3*/site-packages \
            /usr/local/lib/python3*/dist-packages /usr/lib/python3/dist-packages /usr/lib/python3*/site-packages
    fi
    for folder; do
        packages_in "$folder"
    done
    take /etc/ld.so.cache cuda_names
    rest=${LD_LIBRARY_PATH:-}:
    while [ -n "$rest" ]; do
        folder=${rest%%:*}
        rest=${rest#*:}
        case $folder in
        /sys* | /proc* | /dev*) ;;
        /*) libraries_in "${folder%/}" ;;
        esac
    done
fi
take /sys/fs/cgroup/devices/devices.list

# --- programs ----------------------------------------------------------------------------------

limit=''
# An old busybox wants its seconds behind -t: better no limit than a wrong one.
timeout -s KILL 5 true 2>/dev/null && limit='timeout -s KILL'

count=0
# ask SECONDS PROGRAM...: keep what a program prints; status is its exit status, '' when it ran out of time.
ask() {
    seconds=$1
    shift
    status=127
    command -v "$1" >/dev/null 2>&1 || return 0
    count=$((count + 1))
    rm -f "$work/status"
    (
        ${limit:+$limit "$seconds"} "$@" >"$work/out" 2>"$work/err" </dev/null
        echo $? >"$work/status.new"
        mv "$work/status.new" "$work/status"
    ) &
    # A program stuck in a driver cannot be ended: after a while it is left behind.
    tries=$((seconds * 10 + 20))
    while [ ! -e "$work/status" ] && [ $tries -gt 0 ]; do
        if sleep 0.1 2>/dev/null; then tries=$((tries - 1)); else
            sleep 1
            tries=$((tries - 10))
        fi
    done
    status=''
    [ ! -e "$work/status" ] || read -r status <"$work/status"
    case $status in
    '' | 137)
        status=''
        note "$1 did not answer within $seconds seconds"
        printf 'timed-out %s\n' "$*" >>"$manifest"
        return 0
        ;;
    esac
    clean <"$work/out" >"$tree/commands/$count.out"
    clean <"$work/err" >"$tree/commands/$count.err"
    printf 'command %s commands/%s.out commands/%s.err %s\n' "$status" $count $count "$*" >>"$manifest"
}

missing=''
if [ -z "$root" ]; then
    ask 10 dmesg
    if [ "$status" != 0 ] || [ ! -s "$tree/commands/$count.out" ]; then
        [ "$status" != 1 ] || missing='the kernel log'
        ask 20 journalctl -k -b -o short-monotonic --no-pager
        [ "$status" != 0 ] || [ ! -s "$tree/commands/$count.out" ] || missing=''
    fi
    ask 30 nvidia-smi -q -x
    if [ $ipmi = yes ]; then
        ask 60 ipmitool fru
        # One that did not answer will not answer the rest.
        [ -z "$status" ] || ask 60 ipmitool sdr elist
        [ -z "$status" ] || ask 10 ipmitool dcmi power reading
        [ -z "$status" ] || ask 60 ipmitool sel elist
    fi
elif [ -r "$root/var/log/dmesg" ]; then
    take /var/log/dmesg clean
fi
# Where no manifest is understood, a log file is.
for log in "$tree"/commands/*.out; do
    if [ -s "$log" ] && grep -q -E "^command 0 commands/${log##*/} .* (dmesg|journalctl .*)\$" "$manifest"; then
        mkdir -p "$tree/var/log"
        mv "$log" "$tree/var/log/dmesg"
        sed "s#commands/${log##*/} #var/log/dmesg #" "$manifest" >"$work/manifest" && cat "$work/manifest" >"$manifest"
    fi
done

# --- the archive -------------------------------------------------------------------------------

plain=''
if tar --version 2>/dev/null | grep -q GNU; then
    plain='--owner=0 --group=0 --numeric-owner'
elif [ $am_root = no ] && [ $redact = yes ]; then
    note "the archive's own listing names its maker: $(id -un 2>/dev/null)"
fi
# shellcheck disable=SC2086 # options
(cd "$work" && tar $plain -cf archive gpucheck-capture) || fail "tar failed"
if [ -n "$packer" ]; then
    $packer -c "$work/archive" >"$work/packed" || fail "$packer failed"
else
    mv "$work/archive" "$work/packed"
fi
part=$target.part$$
{ cat "$work/packed" >"$part" && mv "$part" "$target"; } 2>/dev/null || fail "$target cannot be written"
part=''

if grep -q '^unreadable EACCES /sys/firmware/dmi/' "$manifest"; then
    missing="SMBIOS (slots, CPU sockets, power supplies, memory)${missing:+ and $missing}"
fi
[ -z "$missing" ] || note "not readable without root: $missing. sudo sh capture.sh adds it."
[ $redact = no ] || note "serial numbers, UUIDs, addresses and names are replaced; look through it before you publish it."
printf '%s\n' "$target"
