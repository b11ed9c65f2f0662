/* A stand-in for libnvidia-ml.so.1 that a script drives.
 *
 * It exports the symbols that the real library exports, with its argument and structure layouts, so
 * that the real pynvml loads it. The environment variable GPUCHECK_FAKE_NVML names the script: lines
 * "path<TAB>value", flattened from JSON by __init__.py, where the form of the script is described.
 */
#define _GNU_SOURCE
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25, UNKNOWN = 999 };

typedef int Return;
typedef unsigned int U32;
typedef unsigned long long U64;
typedef struct Device *Handle; /* index + 1: never NULL, never looked into */

/* --- the script ------------------------------------------------------------------------------ */

typedef struct { char *path, *value; U32 uses; } Entry;

static Entry *entries;
static size_t entry_count;
static struct timespec loaded;
static int started;

static void decode(char *text) /* %41 -> A, in place */
{
    char *to = text;
    for (; *text; text++) {
        U32 byte;
        if (*text == '%' && sscanf(text + 1, "%2x", &byte) == 1) {
            *to++ = (char)byte;
            text += 2;
        } else
            *to++ = *text;
    }
    *to = 0;
}

static int by_path(const void *first, const void *second)
{
    return strcmp(((const Entry *)first)->path, ((const Entry *)second)->path);
}

__attribute__((constructor)) static void load(void)
{
    const char *name = getenv("GPUCHECK_FAKE_NVML");
    FILE *file = name ? fopen(name, "r") : NULL;
    char *line = NULL;
    size_t size = 0;
    clock_gettime(CLOCK_MONOTONIC, &loaded);
    while (file && getline(&line, &size, file) > 0) {
        char *tab = strchr(line, '\t');
        if (!tab)
            continue;
        *tab = 0;
        tab[1 + strcspn(tab + 1, "\n")] = 0;
        decode(tab + 1);
        entries = realloc(entries, (entry_count + 1) * sizeof *entries);
        entries[entry_count++] = (Entry){strdup(line), strdup(tab + 1), 0};
    }
    free(line);
    if (file)
        fclose(file);
    qsort(entries, entry_count, sizeof *entries, by_path);
}

static Entry *find(const char *path, const char *more)
{
    char whole[256];
    snprintf(whole, sizeof whole, "%s%s", path, more);
    return bsearch(&(Entry){whole, NULL, 0}, entries, entry_count, sizeof *entries, by_path);
}

static double elapsed(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - loaded.tv_sec) + (double)(now.tv_nsec - loaded.tv_nsec) / 1e9;
}

static int busy(const char *owner);

/* The value at owner + name right now, or NULL: a scalar; a list, one item per use, the last stays;
 * {"idle", "busy"}; {"start", "per_second"}. */
static const char *value(const char *owner, const char *name)
{
    static char number[40];
    char path[200], step[16];
    Entry *entry, *first, *rate;
    snprintf(path, sizeof path, "%s%s", owner, name);
    if ((entry = find(path, "")))
        return entry->value;
    if ((first = find(path, ".0"))) {
        U32 use = first->uses++;
        do
            snprintf(step, sizeof step, ".%u", use);
        while (!(entry = find(path, step)) && use--);
        return entry->value;
    }
    if ((entry = find(path, ".start")) && (rate = find(path, ".per_second"))) {
        snprintf(number, sizeof number, "%.0f", atof(entry->value) + atof(rate->value) * elapsed());
        return number;
    }
    if (!find(path, ".idle"))
        return NULL;
    entry = find(path, busy(owner) ? ".busy" : ".idle");
    return entry ? entry->value : NULL;
}

static const char *owner_of(Handle handle)
{
    static char owner[24];
    snprintf(owner, sizeof owner, "devices.%zu.", (size_t)handle - 1);
    return owner;
}

static U32 device_count(void)
{
    for (U32 i = 0;; i++) {
        char path[40];
        snprintf(path, sizeof path, "devices.%u.", i);
        if (!find(path, "address"))
            return i;
    }
}

/* What table says of a function: by its name, its name without _v2 or _v3, or "*" for all. */
static const char *about(const char *owner, const char *table, const char *function)
{
    char name[120];
    const char *found, *version = strstr(function, "_v");
    snprintf(name, sizeof name, "%s.%s", table, function);
    if ((found = value(owner, name)))
        return found;
    if (version) {
        name[strlen(name) - strlen(version)] = 0;
        if ((found = value(owner, name)))
            return found;
    }
    snprintf(name, sizeof name, "%s.*", table);
    return value(owner, name);
}

/* What the script wants of this call: wait, hang, crash, a return code. */
static Return scripted(const char *owner, const char *function)
{
    const char *delay = about(owner, "delays", function), *code;
    if (delay)
        usleep((useconds_t)(atof(delay) * 1e6));
    if (!(code = about(owner, "calls", function)))
        return OK;
    if (!strcmp(code, "hang"))
        for (;;)
            pause();
    if (!strcmp(code, "crash")) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    return atoi(code);
}

static Return enter(Handle handle, const char *function)
{
    Return code = scripted("", function);
    if (code == OK && !started)
        return UNINITIALIZED;
    return code == OK && handle ? scripted(owner_of(handle), function) : code;
}

/* --- processes ------------------------------------------------------------------------------- */

typedef struct { U32 pid; U64 used; U32 gpu_instance, compute_instance; } Process;
enum { MOST = 64 };

static int alive(long pid) { return pid > 0 && kill((pid_t)pid, 0) == 0; }

/* Whether a process was a child before the script was written: a daemon that another test left running. */
static int was_there(long pid)
{
    char wanted[24];
    const char *earlier = getenv("GPUCHECK_FAKE_NVML_EARLIER"); /* ",12,34," */
    snprintf(wanted, sizeof wanted, ",%ld,", pid);
    return earlier && strstr(earlier, wanted) != NULL;
}

/* The ids in the files that match, without this process and those that ended. */
static U32 listed(const char *pattern, U32 *found)
{
    U32 count = 0;
    glob_t files;
    if (glob(pattern, 0, NULL, &files) != 0)
        return 0;
    for (size_t i = 0; i < files.gl_pathc; i++) {
        long pid;
        FILE *file = fopen(files.gl_pathv[i], "r");
        while (file && count < MOST && fscanf(file, "%ld", &pid) == 1)
            if (pid != getpid() && alive(pid) && !was_there(pid))
                found[count++] = (U32)pid;
        if (file)
            fclose(file);
    }
    globfree(&files);
    return count;
}

/* Process ids behind one "pid" of the script: a number, "parent" of the process that asks, "siblings"
 * (its parent's other children), or "file:PATH" with one id per line. */
static U32 pids(const char *what, U32 *found)
{
    char path[60], *end = NULL;
    long pid = strtol(what, &end, 10);
    if (end != what) {
        found[0] = (U32)pid;
        return pid > 0;
    }
    if (!strcmp(what, "parent")) {
        found[0] = (U32)getppid();
        return 1;
    }
    if (!strcmp(what, "siblings")) {
        snprintf(path, sizeof path, "/proc/%d/task/*/children", getppid()); /* one file per thread */
        return listed(path, found);
    }
    return strncmp(what, "file:", 5) ? 0 : listed(what + 5, found);
}

static U32 processes(const char *owner, Process *list)
{
    U32 count = 0, found[MOST];
    for (U32 i = 0; count < MOST; i++) {
        char name[40];
        snprintf(name, sizeof name, "processes.%u.pid", i);
        const char *pid = value(owner, name);
        if (!pid)
            return count;
        U32 several = pids(pid, found);
        snprintf(name, sizeof name, "processes.%u.used_bytes", i);
        const char *used = value(owner, name);
        for (U32 k = 0; k < several && count < MOST; k++) /* no "used_bytes": not available, all ones */
            list[count++] = (Process){found[k], used ? strtoull(used, NULL, 10) : ~0ULL, ~0U, ~0U};
    }
    return count;
}

static int busy(const char *owner)
{
    Process list[MOST];
    return processes(owner, list) > 0;
}

/* --- answers --------------------------------------------------------------------------------- */

#define ENTER(handle) \
    do { Return code_ = enter(handle, __func__); if (code_ != OK) return code_; } while (0)

static Return text(const char *owner, const char *name, char *to, U32 size)
{
    const char *found = value(owner, name);
    if (!found)
        return NOT_SUPPORTED;
    if (strlen(found) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(to, found);
    return OK;
}

static Return number(Handle handle, const char *name, U64 *to)
{
    const char *found = value(handle ? owner_of(handle) : "", name);
    if (!found)
        return NOT_SUPPORTED;
    *to = strtoull(found, NULL, 10);
    return OK;
}

static Return small(Handle handle, const char *name, U32 *to)
{
    U64 wide;
    Return code = number(handle, name, &wide);
    if (code == OK)
        *to = (U32)wide;
    return code;
}

#define TEXT(function, name) \
    Return function(Handle h, char *to, U32 size) { ENTER(h); return text(owner_of(h), name, to, size); }
#define NUMBER(function, name) \
    Return function(Handle h, U32 *to) { ENTER(h); return small(h, name, to); }
#define NUMBER_OF(function, name) /* with a selector that the script does not tell apart */ \
    Return function(Handle h, U32 which, U32 *to) { (void)which; ENTER(h); return small(h, name, to); }
#define WIDE(function, name) \
    Return function(Handle h, U64 *to) { ENTER(h); return number(h, name, to); }
#define PAIR(function, first, second) \
    Return function(Handle h, U32 *a, U32 *b) \
    { ENTER(h); Return code = small(h, first, a); return code == OK ? small(h, second, b) : code; }

static Return start(void)
{
    Return code = scripted("", "nvmlInit");
    if (code == OK && !entry_count)
        return UNKNOWN; /* no script */
    started = code == OK;
    return code;
}

Return nvmlInitWithFlags(U32 flags) { (void)flags; return start(); }
Return nvmlInit_v2(void) { return start(); }
Return nvmlInit(void) { return start(); }
Return nvmlShutdown(void) { ENTER(NULL); started = 0; return OK; }

const char *nvmlErrorString(Return code)
{
    static char words[32];
    snprintf(words, sizeof words, "Scripted error %d", code);
    return words;
}

Return nvmlSystemGetDriverVersion(char *to, U32 size) { ENTER(NULL); return text("", "driver_version", to, size); }
Return nvmlSystemGetNVMLVersion(char *to, U32 size) { ENTER(NULL); return text("", "nvml_version", to, size); }
Return nvmlSystemGetCudaDriverVersion(int *to) { ENTER(NULL); return small(NULL, "cuda_version", (U32 *)to); }
Return nvmlSystemGetCudaDriverVersion_v2(int *to) { ENTER(NULL); return small(NULL, "cuda_version", (U32 *)to); }

Return nvmlDeviceGetCount_v2(U32 *count) { ENTER(NULL); *count = device_count(); return OK; }
Return nvmlDeviceGetCount(U32 *count) { return nvmlDeviceGetCount_v2(count); }

Return nvmlDeviceGetHandleByIndex_v2(U32 index, Handle *handle)
{
    if (index >= device_count())
        return INVALID_ARGUMENT;
    ENTER((Handle)(size_t)(index + 1));
    *handle = (Handle)(size_t)(index + 1);
    return OK;
}

static Return handle_with(const char *name, const char *wanted, Handle *handle)
{
    for (U32 i = 0; i < device_count(); i++) {
        Handle candidate = (Handle)(size_t)(i + 1);
        const char *found = value(owner_of(candidate), name);
        size_t less = found && strlen(wanted) > strlen(found) ? strlen(wanted) - strlen(found) : 0;
        if (found && !strcasecmp(found, wanted + less)) { /* an 8-digit domain matches a 4-digit one */
            *handle = candidate;
            return OK;
        }
    }
    return NOT_FOUND;
}

Return nvmlDeviceGetHandleByUUID(const char *uuid, Handle *h) { ENTER(NULL); return handle_with("uuid", uuid, h); }
Return nvmlDeviceGetHandleByPciBusId_v2(const char *id, Handle *h) { ENTER(NULL); return handle_with("address", id, h); }
Return nvmlDeviceGetIndex(Handle h, U32 *index) { ENTER(h); *index = (U32)((size_t)h - 1); return OK; }

typedef struct { char legacy[16]; U32 domain, bus, device, id, subsystem; char bus_id[32]; } PciInfo;

static U32 packed_id(const char *owner, const char *name) /* "10de:1b38" -> 0x1b3810de */
{
    U32 vendor = 0, device = 0;
    const char *found = value(owner, name);
    if (found)
        sscanf(found, "%x:%x", &vendor, &device);
    return device << 16 | vendor;
}

Return nvmlDeviceGetPciInfo_v3(Handle h, PciInfo *info)
{
    ENTER(h);
    const char *owner = owner_of(h);
    U32 function = 0;
    memset(info, 0, sizeof *info);
    sscanf(value(owner, "address"), "%x:%x:%x.%x", &info->domain, &info->bus, &info->device, &function);
    snprintf(info->legacy, sizeof info->legacy, "%04X:%02X:%02X.%X", info->domain & 0xffff, info->bus & 0xff,
             info->device & 0x1f, function & 7);
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.%X", info->domain, info->bus, info->device, function);
    info->id = packed_id(owner, "pci_id");
    info->subsystem = packed_id(owner, "subsystem_id");
    return OK;
}

Return nvmlDeviceGetMemoryInfo(Handle h, U64 *info) /* total, free, used */
{
    ENTER(h);
    Return code = number(h, "memory_total_bytes", &info[0]);
    if (code == OK && (code = number(h, "memory_used_bytes", &info[2])) == OK)
        info[1] = info[0] - info[2];
    return code;
}

typedef struct { U32 version; U64 total, reserved, free, used; } MemoryV2;

Return nvmlDeviceGetMemoryInfo_v2(Handle h, MemoryV2 *info)
{
    ENTER(h);
    if (info->version != (sizeof *info | 2u << 24))
        return VERSION_MISMATCH;
    Return code = number(h, "memory_total_bytes", &info->total);
    if (code == OK && (code = number(h, "memory_used_bytes", &info->used)) == OK) {
        info->reserved = 0;
        info->free = info->total - info->used;
    }
    return code;
}

Return nvmlDeviceGetBAR1MemoryInfo(Handle h, U64 *info) /* total, free, used */
{
    ENTER(h);
    Return code = number(h, "bar1_bytes", &info[0]);
    info[1] = info[0], info[2] = 0;
    return code;
}

Return nvmlDeviceGetCudaComputeCapability(Handle h, int *major, int *minor)
{
    ENTER(h);
    const char *found = value(owner_of(h), "compute_capability");
    return found && sscanf(found, "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}

Return nvmlDeviceGetUtilizationRates(Handle h, U32 *rates) /* gpu, memory */
{
    ENTER(h);
    rates[1] = 0;
    return small(h, "utilization_percent", rates);
}

/* The caller first asks for the size, then for that many: both see the same list. */
static Return list_processes(Handle h, U32 *count, Process *to, Return code)
{
    static Process list[MOST];
    static U32 found;
    if (code != OK)
        return code;
    if (!to)
        found = processes(owner_of(h), list);
    U32 room = *count;
    *count = found;
    if (found > room || (found && !to))
        return INSUFFICIENT_SIZE;
    if (found)
        memcpy(to, list, found * sizeof *to);
    return OK;
}

Return nvmlDeviceGetComputeRunningProcesses_v3(Handle h, U32 *count, Process *to)
{ return list_processes(h, count, to, enter(h, __func__)); }
Return nvmlDeviceGetComputeRunningProcesses_v2(Handle h, U32 *count, Process *to)
{ return list_processes(h, count, to, enter(h, __func__)); }

Return nvmlDeviceGetRetiredPages(Handle h, U32 cause, U32 *count, U64 *pages)
{
    (void)pages;
    ENTER(h);
    U32 found;
    Return code = small(h, cause ? "retired_pages_double_bit" : "retired_pages_single_bit", &found);
    if (code != OK)
        return code;
    U32 room = *count;
    *count = found;
    if (found > room || !pages)
        return INSUFFICIENT_SIZE;
    for (U32 i = 0; i < found; i++)
        pages[i] = 0x1000ULL * (i + 1);
    return OK;
}

Return nvmlDeviceGetRemappedRows(Handle h, U32 *corrected, U32 *uncorrected, U32 *pending, U32 *failed)
{
    ENTER(h);
    *corrected = *pending = *failed = 0;
    small(h, "remapped_rows_corrected", corrected);
    small(h, "remapped_rows_pending", pending);
    small(h, "remapped_rows_failed", failed);
    return small(h, "remapped_rows_uncorrected", uncorrected);
}

Return nvmlDeviceGetTotalEccErrors(Handle h, U32 type, U32 counter, U64 *to)
{
    static const char *names[2][2] = {{"ecc_volatile_corrected", "ecc_aggregate_corrected"},
                                      {"ecc_volatile_uncorrected", "ecc_aggregate_uncorrected"}};
    ENTER(h);
    return number(h, names[type & 1][counter & 1], to);
}

Return nvmlDeviceGetMaxMigDeviceCount(Handle h, U32 *count)
{
    ENTER(h);
    *count = value(owner_of(h), "mig_devices") ? 7 : 0;
    return OK;
}

Return nvmlDeviceGetMigDeviceHandleByIndex(Handle h, U32 index, Handle *to)
{
    U32 found = 0;
    ENTER(h);
    small(h, "mig_devices", &found);
    *to = (Handle)(size_t)(1000 + index);
    return index < found ? OK : NOT_FOUND;
}

typedef struct { unsigned char cluster[16]; U32 status, clique, state; } Fabric;
typedef struct { U32 version; Fabric fabric; U32 health; } FabricV;

Return nvmlDeviceGetGpuFabricInfoV(Handle h, FabricV *info)
{
    ENTER(h);
    if (info->version != (sizeof *info | 2u << 24))
        return VERSION_MISMATCH;
    return small(h, "fabric_state", &info->fabric.state);
}

Return nvmlDeviceGetGpuFabricInfo(Handle h, Fabric *info)
{ ENTER(h); return small(h, "fabric_state", &info->state); }

Return nvmlDeviceGetP2PStatus(Handle h, Handle peer, U32 index, U32 *status)
{
    (void)peer, (void)index;
    ENTER(h);
    return small(h, "p2p_status", status);
}

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "link_width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "link_max_width")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "link_gen")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "link_max_gen")
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, "gpu_max_gen")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
NUMBER(nvmlDeviceGetPowerUsage, "power_mw")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power_limit_mw")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power_default_limit_mw")
NUMBER(nvmlDeviceGetPerformanceState, "performance_state")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pages_pending")
NUMBER_OF(nvmlDeviceGetTemperature, "temperature_c")
NUMBER_OF(nvmlDeviceGetClockInfo, "sm_clock_mhz")
NUMBER_OF(nvmlDeviceGetMaxClockInfo, "sm_max_clock_mhz")
WIDE(nvmlDeviceGetTotalEnergyConsumption, "energy_mj")
WIDE(nvmlDeviceGetCurrentClocksEventReasons, "throttle_reasons")
WIDE(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle_reasons")
PAIR(nvmlDeviceGetEccMode, "ecc", "ecc")
PAIR(nvmlDeviceGetMigMode, "mig", "mig")
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, "power_min_limit_mw", "power_max_limit_mw")
