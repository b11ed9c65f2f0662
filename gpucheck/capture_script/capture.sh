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

  --ipmi         also ask the BMC for the power supplies (ipmitool; up to a minute, needs root)
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
    }' | while read -r line; do
        # shellcheck disable=SC2059 # the line is the format: octal escapes
        printf "$line"
    done
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
    # Displays, accelerators and bridges: link, addresses, and the header of configuration space.
    case $class in
    3???? | 604?? | 680?? | 1200??) ;;
    *) return ;;
    esac
    for name in numa_node boot_vga resource current_link_width max_link_width current_link_speed max_link_speed; do
        lines "$root$from/$name" "$into/$name"
    done
    [ ! -r "$root$from/config" ] || dd if="$root$from/config" of="$into/config" bs=64 count=1 2>/dev/null
    for name in iommu_group physfn; do
        link "$from/$name" "$here/$name"
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
release=''
[ ! -r "$root/proc/sys/kernel/osrelease" ] || read -r release <"$root/proc/sys/kernel/osrelease"
for folder in ${release:+"/lib/modules/$release" "/usr/lib/modules/$release"}; do
    [ -d "$root$folder" ] || continue
    take "$folder/modules.dep" sed -n 's/^\([^:]*nvidia[^:]*:\).*/\1/p'
    names_in "$folder/updates/dkms" 'nvidia*.ko*'
    names_in "$folder/extra" 'nvidia*.ko*'
    break
done

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
    [ $ipmi = no ] || ask 60 ipmitool fru
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
