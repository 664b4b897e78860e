/* host.c: file systems, memory, processors, time and load of the host, from /proc and /sys. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "platform/health/facts.h"

#define TEXT_BYTES 65536

void lt_facts_of_boot(lt_facts *f, const lt_facts_plan *p) {
    if (!lt_machine_number(p->source, &f->uptime_s, "/proc/uptime")) {
        f->uptime_s = NAN;
        lt_facts_skip(f, "uptime", "/proc/uptime cannot be read: counters are not judged");
    }
    (void)lt_machine_text(p->source, f->boot, sizeof f->boot, "/proc/sys/kernel/random/boot_id");
}

/* ---- File systems ---- */

/* In /proc/mounts, blanks of a path are written as \040, and backslashes as \134 (proc(5)). */
static const char *unescape(char *path) {
    char *to = path;
    for (const char *at = path; *at != '\0';) {
        if (at[0] == '\\' && strspn(at + 1, "01234567") >= 3) {
            *to++ = (char)((at[1] - '0') << 6 | (at[2] - '0') << 3 | (at[3] - '0'));
            at += 4;
        } else {
            *to++ = *at++;
        }
    }
    *to = '\0';
    return path;
}

/* Find a mount point in the list "DEVICE POINT TYPE OPTIONS ..."; the last entry counts. */
static bool find_mount(const char *mounts, const char *point, bool *read_only) {
    char where[LT_PATH_BYTES];
    char options[1024];
    bool found = false;
    for (const char *line = mounts; line != NULL && *line != '\0';) {
        if (sscanf(line, "%*s %4095s %*s %1023s", where, options) == 2 &&
            strcmp(unescape(where), point) == 0) {
            found = true;
            *read_only = strncmp(options, "ro", 2) == 0 &&
                         (options[2] == ',' || options[2] == '\0');
        }
        line = strchr(line, '\n');
        line += line != NULL;
    }
    return found;
}

static double share(double part, double whole) {
    return whole > 0.0 ? part / whole : NAN;
}

static void add_mount(lt_facts *f, const lt_facts_plan *p, const char *mounts, const char *point,
                      bool needed) {
    lt_mount_reading m;
    bool read_only = false;

    if (!find_mount(mounts, point, &read_only)) {
        lt_facts_add(f, LT_CHECK_FS_MISSING, point, needed ? 1.0 : NAN);
        return;
    }
    lt_facts_add(f, LT_CHECK_FS_MISSING, point, needed ? 0.0 : NAN);
    lt_facts_add(f, LT_CHECK_FS_READ_ONLY, point, read_only);
    if (p->source->mount(p->source, &m, point, p->mount_s) != LT_OK) {
        lt_facts_skip(f, point, "%s", lt_error_message());
        return;
    }
    lt_facts_add(f, LT_CHECK_FS_STALLED, point, m.stalled);
    if (!m.stalled && !read_only) { /* An image that is mounted read-only is always full. */
        lt_facts_add(f, LT_CHECK_FS_FREE, point, share(m.free_bytes, m.bytes));
        lt_facts_add(f, LT_CHECK_FS_INODES, point, share(m.free_files, m.files));
    }
}

static void add_mounts(lt_facts *f, const lt_facts_plan *p) {
    /* Those of them that are mounted are checked. */
    static const char usual[] = "/,/tmp,/dev/shm,/var";
    const bool needed = p->mounts[0] != '\0';
    char list[LT_PATH_BYTES], *rest = list, *point;
    char *mounts = malloc((size_t)16 * TEXT_BYTES);

    if (mounts == NULL ||
        !lt_machine_text(p->source, mounts, (size_t)16 * TEXT_BYTES, "/proc/mounts")) {
        lt_facts_skip(f, "fs", "/proc/mounts cannot be read");
        free(mounts);
        return;
    }
    snprintf(list, sizeof list, "%s", needed ? p->mounts : usual);
    while ((point = strsep(&rest, ",")) != NULL) {
        for (size_t n = strlen(point); n > 1 && point[n - 1] == '/'; n--) {
            point[n - 1] = '\0';
        }
        add_mount(f, p, mounts, point, needed);
    }
    free(mounts);
}

/* ---- Memory ---- */

/* Sum of a counter over the memory controllers that EDAC knows; NAN: none. */
static double edac_sum(const lt_machine_source *s, const char *counter) {
    static const char folder[] = "/sys/devices/system/edac/mc";
    char **names = NULL;
    size_t n = 0;
    double sum = NAN, value;
    if (!lt_machine_names(s, &names, &n, folder)) {
        return NAN;
    }
    for (size_t i = 0; i < n; i++) {
        if (strncmp(names[i], "mc", 2) == 0 &&
            lt_machine_number(s, &value, "%s/%s/%s", folder, names[i], counter)) {
            sum = lt_reading_add(sum, value);
        }
    }
    lt_file_list_free(names, n);
    return sum;
}

static void add_memory(lt_facts *f, const lt_machine_source *s, char *text) {
    double all, available, kills;
    if (lt_machine_text(s, text, TEXT_BYTES, "/proc/meminfo") &&
        lt_machine_entry(text, "MemTotal:", &all) &&
        lt_machine_entry(text, "MemAvailable:", &available)) {
        lt_facts_add(f, LT_CHECK_MEM_AVAILABLE, "", share(available, all));
    } else {
        lt_facts_skip(f, "mem", "/proc/meminfo cannot be read");
    }
    if (lt_machine_text(s, text, TEXT_BYTES, "/proc/vmstat") &&
        lt_machine_entry(text, "oom_kill ", &kills)) {
        lt_facts_add(f, LT_CHECK_MEM_OOM, "", kills);
    }
    lt_facts_add(f, LT_CHECK_MEM_UNCORRECTED, "", edac_sum(s, "ue_count"));
    lt_facts_add(f, LT_CHECK_MEM_CORRECTED, "", edac_sum(s, "ce_count"));
}

/* ---- Processors, load, time ---- */

/* The number of entries of a list such as "0-3,8"; NAN: it is not a list. */
static double count_list(const char *text) {
    double n = 0.0;
    for (const char *p = text; *p != '\0';) {
        char *end;
        const long from = strtol(p, &end, 10);
        long to = from;
        if (end == p) {
            return NAN;
        }
        if (*end == '-') {
            p = end + 1;
            to = strtol(p, &end, 10);
        }
        n += (double)(to - from + 1);
        p = *end == ',' ? end + 1 : end;
        if (*p != '\0' && *end != ',') {
            return NAN;
        }
    }
    return n > 0.0 ? n : NAN;
}

static double count_cpus(const lt_machine_source *s, char *text, const char *which) {
    return lt_machine_text(s, text, TEXT_BYTES, "/sys/devices/system/cpu/%s", which)
               ? count_list(text)
               : NAN;
}

/* All threads of a package count the same events, so the largest counter is used, not the sum. */
static double most_throttles(const lt_machine_source *s, double n_cpus) {
    double most = NAN, value;
    for (int cpu = 0; cpu < (int)n_cpus; cpu++) {
        if (lt_machine_number(
                s, &value, "/sys/devices/system/cpu/cpu%d/thermal_throttle/package_throttle_count",
                cpu)) {
            most = fmax(most, value); /* fmax ignores NAN. */
        }
    }
    return most;
}

static void add_processors(lt_facts *f, const lt_machine_source *s, char *text) {
    const double present = count_cpus(s, text, "present"), online = count_cpus(s, text, "online");
    double one, five, blocked;

    lt_facts_add(f, LT_CHECK_CPU_OFFLINE, "", present - online);
    lt_facts_add(f, LT_CHECK_CPU_THROTTLES, "", isnan(online) ? NAN : most_throttles(s, online));
    if (lt_machine_text(s, text, TEXT_BYTES, "/proc/loadavg") &&
        sscanf(text, "%lf %lf", &one, &five) == 2) {
        lt_facts_add(f, LT_CHECK_LOAD, "", five / online);
    }
    if (lt_machine_text(s, text, TEXT_BYTES, "/proc/stat") &&
        lt_machine_entry(text, "procs_blocked ", &blocked)) {
        lt_facts_add(f, LT_CHECK_LOAD_BLOCKED, "", blocked);
    }
}

static void add_time(lt_facts *f, const lt_machine_source *s) {
    lt_time_reading t;
    if (s->time(s, &t) != LT_OK) {
        lt_facts_skip(f, "time", "%s", lt_error_message());
        return;
    }
    lt_facts_add(f, LT_CHECK_TIME_UNSYNCHRONISED, "", !t.synchronised);
    if (t.synchronised) {
        lt_facts_add(f, LT_CHECK_TIME_ERROR, "", t.error_s);
    }
}

void lt_facts_of_host(lt_facts *f, const lt_facts_plan *p) {
    char *text = malloc(TEXT_BYTES);
    if (text == NULL) {
        f->out_of_memory = true;
        return;
    }
    add_mounts(f, p);
    add_memory(f, p->source, text);
    add_processors(f, p->source, text);
    add_time(f, p->source);
    free(text);
}
