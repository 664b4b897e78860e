/* log.c: kernel messages about errors of GPUs (XID), disks and processors.
 *
 * Each read of /dev/kmsg gives one record, "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT\n";
 * continuation lines begin with a space. The driver of a GPU writes
 *
 *     NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus.
 *
 * Only records of the last log_window_s seconds count, because an error remains in the log after
 * the GPU was reset. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "platform/health/facts.h"

#define RECORD_BYTES 8192
#define RECORDS_MOST 1000000

/* Whether "0000:18:00" of a message and "00000000:18:00.0" of NVML are the same address. */
static bool same_place(const char *message, const char *pci) {
    unsigned domain[2], bus[2], device[2];
    return sscanf(message, "%x:%x:%x", &domain[0], &bus[0], &device[0]) == 3 &&
           sscanf(pci, "%x:%x:%x", &domain[1], &bus[1], &device[1]) == 3 &&
           domain[0] == domain[1] && bus[0] == bus[1] && device[0] == device[1];
}

/* Count an XID; text is the part after "NVRM: Xid (PCI:". */
static void count_xid(lt_facts *f, const char *text, double at_s) {
    const char *close = strstr(text, "): ");
    char object[64];
    long number;

    if (close == NULL) {
        return;
    }
    number = strtol(close + 3, NULL, 10);
    snprintf(object, sizeof object, "gpu@%.*s", (int)(close - text), text);
    for (int i = 0; i < f->n_gpus; i++) {
        if (same_place(text, f->gpus[i].pci)) {
            snprintf(object, sizeof object, "gpu%d", f->gpus[i].index);
            f->gpus[i].xid = (double)number;
        }
    }
    lt_facts_count(f, lt_check_of_xid(number), object);
    f->n_xids_new += at_s >= f->new_from_s;
}

static void count_disk(lt_facts *f, const char *text, double at_s) {
    char disk[32];
    (void)at_s;
    snprintf(disk, sizeof disk, "%.*s", (int)strcspn(text, " ,"), text);
    lt_facts_count(f, LT_CHECK_DISK_ERRORS, disk);
}

static void count_machine_check(lt_facts *f, const char *text, double at_s) {
    (void)text;
    (void)at_s;
    lt_facts_count(f, LT_CHECK_CPU_CHECKS, "");
}

static const struct {
    const char *begins; /* A text anywhere in the record; the text after it is passed to count. */
    void (*count)(lt_facts *f, const char *text, double at_s);
} kinds[] = {{"NVRM: Xid (PCI:", count_xid},
             {"I/O error, dev ", count_disk},
             {"[Hardware Error]: Machine check events logged", count_machine_check}};

static void count_record(lt_facts *f, const char *line) {
    unsigned long long microseconds = 0;
    const char *text = strchr(line, ';');
    double at_s;

    if (text == NULL || sscanf(line, "%*u,%*u,%llu", &microseconds) != 1) {
        return;
    }
    at_s = (double)microseconds * 1e-6;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && at_s >= f->log_from_s; i++) {
        const char *found = strstr(text, kinds[i].begins);
        if (found != NULL) {
            kinds[i].count(f, found + strlen(kinds[i].begins), at_s);
        }
    }
}

/* Handle the lines of one read, and keep the beginning of a line whose end comes with the next
 * read. */
static size_t count_lines(lt_facts *f, char *data, size_t n) {
    char *line = data, *end;
    while ((end = memchr(line, '\n', n - (size_t)(line - data))) != NULL) {
        *end = '\0';
        count_record(f, line);
        line = end + 1;
    }
    n -= (size_t)(line - data);
    memmove(data, line, n);
    return n;
}

void lt_facts_of_log(lt_facts *f, const lt_facts_plan *p) {
    char path[LT_PATH_BYTES + 16], data[2 * RECORD_BYTES];
    size_t kept = 0;
    int fd;

    snprintf(path, sizeof path, "%s/dev/kmsg", p->source->root);
    fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        lt_facts_skip(f, "kernel log", "%s: %s: no XIDs, disk errors, machine checks", path,
                      strerror(errno));
        return;
    }
    f->log_from_s = isnan(f->uptime_s) ? 0.0 : f->uptime_s - p->log_window_s;
    lt_facts_add(f, LT_CHECK_CPU_CHECKS, "", 0.0);
    for (int record = 0; record < RECORDS_MOST; record++) {
        const ssize_t n = read(fd, data + kept, sizeof data - kept);
        if (n < 0 && errno == EPIPE) {
            /* The kernel has overwritten the record; the next read continues after it. */
            continue;
        }
        if (n <= 0) {
            break;
        }
        kept = count_lines(f, data, kept + (size_t)n);
        /* No record that the table matches is that long. */
        kept = kept < RECORD_BYTES ? kept : 0;
    }
    close(fd);
}
