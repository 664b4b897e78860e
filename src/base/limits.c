/* limits.c: see limits.h. A missing or malformed file sets no limit, because some kernels have no
 * control groups, no version 1 or no swap accounting, and /proc may be hidden. */
#include "base/limits.h"

#include <dirent.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

#define TEXT_BYTES 65536
#define MAX_DEPTH  64

/* One hierarchy of control groups: its mount point, and the process's group in it. */
typedef struct {
    bool v2;
    char mount[LT_PATH_BYTES]; /* As the process sees it. */
    char group[LT_PATH_BYTES]; /* Below it; "": the mount point itself. */
} hierarchy;

typedef struct {
    const char *root;
    lt_limits *out;
    char text[TEXT_BYTES]; /* Text of the file that was read last. */
} reader;

/* ---- Small files ---- */

static bool read_text(reader *r, const char *folder, const char *name) {
    char path[3 * LT_PATH_BYTES];
    FILE *f;
    size_t n;
    snprintf(path, sizeof path, "%s%s/%s", r->root, folder, name);
    f = fopen(path, "re");
    if (f == NULL) {
        return false;
    }
    n = fread(r->text, 1, sizeof r->text - 1, f);
    fclose(f);
    r->text[n] = '\0';
    return n > 0;
}

/* The number at the beginning of text; LT_LIMIT_UNKNOWN for "max", "-1", "unlimited" and no
 * number. */
static uint64_t number(const char *text) {
    char *end = NULL;
    unsigned long long v;
    text += strspn(text, " \t");
    v = strtoull(text, &end, 10);
    return end == text || text[0] == '-' ? LT_LIMIT_UNKNOWN : (uint64_t)v;
}

static uint64_t read_number(reader *r, const char *folder, const char *name) {
    return read_text(r, folder, name) ? number(r->text) : LT_LIMIT_UNKNOWN;
}

/* The number after a key at the beginning of a line of the text. */
static uint64_t value_of(const reader *r, const char *key) {
    const size_t n = strlen(key);
    for (const char *line = r->text; line != NULL && *line != '\0';) {
        if (strncmp(line, key, n) == 0 && strchr(" \t:", line[n]) != NULL && line[n] != '\0') {
            return number(line + n + (line[n] == ':'));
        }
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return LT_LIMIT_UNKNOWN;
}

static uint64_t known_or_0(uint64_t v) {
    return v == LT_LIMIT_UNKNOWN ? 0 : v;
}

/* Number of cores in a list such as "0-3,7"; 0: none. */
static int count_list(const char *text) {
    int n = 0;
    while (*text >= '0' && *text <= '9') {
        char *end = NULL;
        const long first = strtol(text, &end, 10);
        const long last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        n += last >= first && last - first < 1 << 20 ? (int)(last - first + 1) : 0;
        text = *end == ',' ? end + 1 : end;
    }
    return n;
}

/* ---- The least of all ---- */

static void memory_limit(lt_limits *out, uint64_t bytes, const char *folder, const char *name) {
    if (bytes < out->memory_bytes) {
        out->memory_bytes = bytes;
        snprintf(out->memory_by, sizeof out->memory_by, "%s%.200s%s", name,
                 folder[0] != '\0' ? " of " : "", folder);
    }
}

static void available_limit(lt_limits *out, uint64_t limit, uint64_t used, const char *folder,
                            const char *name) {
    const uint64_t left = limit > used ? limit - used : 0;
    if (limit != LT_LIMIT_UNKNOWN && left < out->available_bytes) {
        out->available_bytes = left;
        snprintf(out->available_by, sizeof out->available_by, "%s%.200s%s", name,
                 folder[0] != '\0' ? " of " : "", folder);
    }
}

static void cpus_limit(lt_limits *out, int n, const char *folder, const char *name) {
    if (n > 0 && (out->n_cpus == 0 || n < out->n_cpus)) {
        out->n_cpus = n;
        snprintf(out->cpus_by, sizeof out->cpus_by, "%s%.200s%s", name,
                 folder[0] != '\0' ? " of " : "", folder);
    }
}

/* ---- Groups ---- */

/* Page cache of the current group that the kernel would reclaim for it. Version 1 counts nested
 * groups only in the keys that begin with "total_". */
static uint64_t reclaimable(const reader *r, bool v2) {
    static const char *const names[2][4] = {
        {"total_inactive_file", "total_active_file", "total_mapped_file", ""},
        {"inactive_file", "active_file", "file_mapped", "slab_reclaimable"}};
    const uint64_t files = known_or_0(value_of(r, names[v2][0])) +
                           known_or_0(value_of(r, names[v2][1]));
    const uint64_t mapped = known_or_0(value_of(r, names[v2][2]));
    const uint64_t slab = v2 ? known_or_0(value_of(r, names[v2][3])) : 0;
    return (files > mapped ? files - mapped : 0) + slab;
}

static void group_memory(reader *r, const hierarchy *h, const char *folder) {
    const char *const high = "memory.high", *max = h->v2 ? "memory.max" : "memory.limit_in_bytes";
    const uint64_t limit = read_number(r, folder, max);
    const uint64_t used = read_number(r, folder,
                                      h->v2 ? "memory.current" : "memory.usage_in_bytes");
    const uint64_t throttled = h->v2 ? read_number(r, folder, high) : LT_LIMIT_UNKNOWN;
    const bool has_stat = read_text(r, folder, "memory.stat");
    const uint64_t cache = has_stat ? reclaimable(r, h->v2) : 0;
    const uint64_t held = known_or_0(used) > cache ? known_or_0(used) - cache : 0;

    memory_limit(r->out, limit, folder, max);
    memory_limit(r->out, throttled, folder, high);
    available_limit(r->out, limit, held, folder, max);
    available_limit(r->out, throttled, held, folder, high);
    /* This limit includes groups further up that a container cannot see. */
    if (has_stat && !h->v2) {
        static const char name[] = "hierarchical_memory_limit";
        const uint64_t least = value_of(r, name);
        memory_limit(r->out, least, folder, name);
        available_limit(r->out, least, held, folder, name);
    }
}

static void group_cpus(reader *r, const hierarchy *h, const char *folder) {
    uint64_t quota = LT_LIMIT_UNKNOWN, period = LT_LIMIT_UNKNOWN;
    if (h->v2 && read_text(r, folder, "cpu.max")) {
        const char *space = strchr(r->text, ' ');
        quota = number(r->text);
        period = space != NULL ? number(space) : LT_LIMIT_UNKNOWN;
    } else if (!h->v2) {
        quota = read_number(r, folder, "cpu.cfs_quota_us");
        period = read_number(r, folder, "cpu.cfs_period_us");
    }
    if (quota != LT_LIMIT_UNKNOWN && period != LT_LIMIT_UNKNOWN && quota > 0 && period > 0 &&
        quota / period < 1 << 20) {
        cpus_limit(r->out, (int)((quota + period - 1) / period), folder,
                   h->v2 ? "cpu.max" : "cpu.cfs_quota_us");
    }
}

static void group_cpuset(reader *r, const hierarchy *h, const char *folder) {
    static const char *const names[] = {"cpuset.cpus.effective", "cpuset.effective_cpus",
                                        "cpuset.cpus"};
    (void)h;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (read_text(r, folder, names[i])) {
            cpus_limit(r->out, count_list(r->text), folder, names[i]);
            return;
        }
    }
}

/* Apply the limits of the group and of all groups above it that the mount shows. */
static void walk(reader *r, hierarchy *h,
                 void (*read)(reader *r, const hierarchy *h, const char *folder)) {
    char folder[2 * LT_PATH_BYTES];
    for (int depth = 0; depth < MAX_DEPTH; depth++) {
        char *slash = strrchr(h->group, '/');
        snprintf(folder, sizeof folder, "%s%s", h->mount, h->group);
        read(r, h, folder);
        if (slash == NULL) {
            return;
        }
        *slash = '\0';
    }
}

/* ---- Where the groups lie ---- */

/* Whether a comma-separated list contains the word. */
static bool lists(const char *list, const char *word) {
    const size_t n = strlen(word);
    for (const char *p = list; p != NULL && *p != '\0';) {
        const size_t width = strcspn(p, ",\n ");
        if (width == n && memcmp(p, word, n) == 0) {
            return true;
        }
        p = p[width] == ',' ? p + width + 1 : NULL;
    }
    return false;
}

/* The process's path in the hierarchy that has the controller, from /proc/self/cgroup:
 * "4:memory:/a/b", "0::/a/b". */
static bool find_group(reader *r, const char *controller, bool v2, char out[LT_PATH_BYTES]) {
    if (!read_text(r, "/proc/self", "cgroup")) {
        return false;
    }
    for (char *line = r->text, *rest = NULL; (line = strtok_r(line, "\n", &rest)) != NULL;
         line = NULL) {
        char *list = strchr(line, ':'), *path = list != NULL ? strchr(list + 1, ':') : NULL;
        if (path == NULL) {
            continue;
        }
        *path++ = '\0';
        if (v2 ? list[1] == '\0' : lists(list + 1, controller)) {
            snprintf(out, LT_PATH_BYTES, "%s", path);
            return true;
        }
    }
    return false;
}

/* Decode "\040" and the like, which mountinfo writes for spaces in paths. */
static void decode_octal(char *text) {
    char *to = text;
    for (const char *p = text; *p != '\0';) {
        if (p[0] == '\\' && strspn(p + 1, "01234567") >= 3) {
            *to++ = (char)((p[1] - '0') * 64 + (p[2] - '0') * 8 + (p[3] - '0'));
            p += 4;
        } else {
            *to++ = *p++;
        }
    }
    *to = '\0';
}

/* The part of the group's path below the mount's root. "": they are the same, or the group is
 * elsewhere and only the mount point is visible. */
static const char *below(const char *group, const char *root) {
    const size_t n = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (strncmp(group, root, n) != 0 || (group[n] != '/' && group[n] != '\0') ||
        strstr(group, "/..") != NULL || strcmp(group + n, "/") == 0) {
        return "";
    }
    return group + n;
}

/* A line of mountinfo: "36 35 0:29 ROOT MOUNT options... - TYPE SOURCE OPTIONS"; find the mount of
 * this hierarchy that shows most of the group's path. */
static bool find_mount(reader *r, const char *controller, const char *group, hierarchy *h) {
    bool found = false;
    if (!read_text(r, "/proc/self", "mountinfo")) {
        return false;
    }
    for (char *line = r->text, *rest = NULL; (line = strtok_r(line, "\n", &rest)) != NULL;
         line = NULL) {
        char root[LT_PATH_BYTES], mount[LT_PATH_BYTES], type[32], options[512];
        const char *dash = strstr(line, " - ");
        if (dash == NULL || sscanf(line, "%*s %*s %*s %4095s %4095s", root, mount) != 2 ||
            sscanf(dash + 3, "%31s %*s %511s", type, options) != 2 ||
            strcmp(type, h->v2 ? "cgroup2" : "cgroup") != 0 ||
            (!h->v2 && !lists(options, controller))) {
            continue;
        }
        decode_octal(root);
        decode_octal(mount);
        if (!found || strlen(below(group, root)) > strlen(h->group)) {
            snprintf(h->mount, sizeof h->mount, "%s", strcmp(mount, "/") == 0 ? "" : mount);
            snprintf(h->group, sizeof h->group, "%s", below(group, root));
            found = true;
        }
    }
    return found;
}

static void read_groups(reader *r, const char *controller,
                        void (*read)(reader *r, const hierarchy *h, const char *folder)) {
    hierarchy h;
    char group[LT_PATH_BYTES];
    for (int v2 = 0; v2 < 2; v2++) {
        h = (hierarchy){.v2 = v2 == 1};
        if (find_group(r, controller, h.v2, group) && find_mount(r, controller, group, &h)) {
            walk(r, &h, read);
        }
    }
}

/* ---- The process and the machine ---- */

/* A line of /proc/self/limits: "Max address space      8388608         unlimited   bytes": the soft
 * limit. */
static uint64_t process_limit(const reader *r, const char *name) {
    const char *at = strstr(r->text, name);
    return at != NULL ? number(at + strlen(name)) : LT_LIMIT_UNKNOWN;
}

static uint64_t kib(uint64_t n) {
    return n == LT_LIMIT_UNKNOWN ? n : n << 10;
}

static void read_process(reader *r) {
    uint64_t space = 0, data = 0;
    if (read_text(r, "/proc/self", "status")) {
        const char *list = strstr(r->text, "Cpus_allowed_list:");
        space = known_or_0(kib(value_of(r, "VmSize")));
        data = known_or_0(kib(value_of(r, "VmData")));
        if (list != NULL) {
            list += strlen("Cpus_allowed_list:");
            cpus_limit(r->out, count_list(list + strspn(list, " \t")), "", "the affinity mask");
        }
    }
    if (read_text(r, "/proc/self", "limits")) {
        const uint64_t most_space = process_limit(r, "Max address space"),
                       most_data = process_limit(r, "Max data size");
        memory_limit(r->out, most_space, "", "RLIMIT_AS");
        memory_limit(r->out, most_data, "", "RLIMIT_DATA");
        available_limit(r->out, most_space, space, "", "RLIMIT_AS");
        available_limit(r->out, most_data, data, "", "RLIMIT_DATA");
    }
}

static void read_machine(reader *r) {
    if (read_text(r, "/proc", "meminfo")) {
        memory_limit(r->out, kib(value_of(r, "MemTotal")), "", "the machine's memory");
        available_limit(r->out, kib(value_of(r, "MemAvailable")), 0, "", "MemAvailable");
    }
}

void lt_limits_read_under(lt_limits *out, const char *root) {
    reader r = {.root = root, .out = out};
    *out = (lt_limits){.memory_bytes = LT_LIMIT_UNKNOWN, .available_bytes = LT_LIMIT_UNKNOWN};
    read_machine(&r);
    read_process(&r);
    read_groups(&r, "memory", group_memory);
    read_groups(&r, "cpu", group_cpus);
    read_groups(&r, "cpuset", group_cpuset);
    cpus_limit(out, out->n_cpus == 0 ? 1 : 0, "", "no file says how many");
}

void lt_limits_read(lt_limits *out) {
    lt_limits_read_under(out, "");
}

/* "size resident ..." in pages. */
static uint64_t of_statm(int column) {
    unsigned long long pages[2] = {0, 0};
    FILE *f = fopen("/proc/self/statm", "re");
    if (f != NULL && fscanf(f, "%llu %llu", &pages[0], &pages[1]) != 2) {
        pages[column] = 0;
    }
    if (f != NULL) {
        fclose(f);
    }
    return pages[column] * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t lt_limits_resident_bytes(void) {
    return of_statm(1);
}

uint64_t lt_limits_virtual_bytes(void) {
    return of_statm(0);
}

int64_t lt_limits_open_files(void) {
    DIR *d = opendir("/proc/self/fd");
    int64_t n = 0;
    if (d == NULL) {
        return 0;
    }
    while (readdir(d) != NULL) {
        n++;
    }
    closedir(d);
    return n - 3; /* ".", ".." and the folder's own. */
}

/* ---- Freed memory ---- */

void lt_limits_return_memory(void) {
#ifdef __GLIBC__
    (void)mallopt(M_MMAP_THRESHOLD, LT_LIMITS_LARGE_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, LT_LIMITS_LARGE_BYTES);
#endif
}
