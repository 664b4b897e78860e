/* machine.c: reads this machine; see machine.h. File systems are queried by a child process: if a
 * server does not answer, the querying process may hang for hours, even after SIGKILL, but a
 * check must end in time. The child is then left behind. */
#include "platform/health/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "platform/health/recorded.h"

/* ---- Files ---- */

static bool read_path(const lt_machine_source *s, char *out, size_t room, const char *fmt,
                      va_list args) {
    char name[LT_PATH_BYTES], path[2 * LT_PATH_BYTES];
    ssize_t n;
    size_t used = 0;
    int fd;

    vsnprintf(name, sizeof name, fmt, args);
    snprintf(path, sizeof path, "%s%s", s->root, name);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return false;
    }
    while (used < room - 1 && (n = read(fd, out + used, room - 1 - used)) > 0) {
        used += (size_t)n;
    }
    close(fd);
    while (used > 0 && out[used - 1] == '\n') {
        used--;
    }
    out[used] = '\0';
    return used > 0;
}

bool lt_machine_text(const lt_machine_source *s, char *out, size_t room, const char *fmt, ...) {
    va_list args;
    bool read;
    va_start(args, fmt);
    read = read_path(s, out, room, fmt, args);
    va_end(args);
    return read;
}

bool lt_machine_number(const lt_machine_source *s, double *out, const char *fmt, ...) {
    char text[64], *end = NULL;
    va_list args;
    bool read;
    va_start(args, fmt);
    read = read_path(s, text, sizeof text, fmt, args);
    va_end(args);
    if (!read) {
        return false;
    }
    *out = strtod(text, &end);
    return end != text;
}

bool lt_machine_names(const lt_machine_source *s, char ***names, size_t *n, const char *folder) {
    char path[2 * LT_PATH_BYTES];
    snprintf(path, sizeof path, "%s%s", s->root, folder);
    return lt_file_is_dir(path) && lt_file_list(names, n, path) == LT_OK;
}

bool lt_machine_entry(const char *text, const char *key, double *out) {
    const size_t length = strlen(key);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0) {
            char *end = NULL;
            *out = strtod(line + length, &end);
            return end != line + length;
        }
    }
    return false;
}

/* ---- File systems ---- */

static void ask_in_child(int to, const char *path) {
    struct statvfs v;
    lt_mount_reading r = {0};
    close(STDIN_FILENO); /* A reader of our output must not wait for the child's end, too. */
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    if (statvfs(path, &v) == 0) {
        r.bytes = (double)v.f_blocks * (double)v.f_frsize;
        r.free_bytes = (double)v.f_bavail * (double)v.f_frsize;
        r.files = (double)v.f_files;
        r.free_files = (double)v.f_favail;
        _exit(write(to, &r, sizeof r) != (ssize_t)sizeof r);
    }
    _exit(1);
}

static lt_err ask_mount(const lt_machine_source *s, lt_mount_reading *out, const char *path,
                        double deadline_s) {
    struct pollfd wait = {.events = POLLIN};
    int ends[2], ready;
    pid_t child;
    bool told;

    (void)s;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        LT_FAIL(LT_ERR_IO, "pipe: %s", strerror(errno));
    }
    child = fork();
    if (child == 0) {
        ask_in_child(ends[1], path);
    }
    close(ends[1]);
    wait.fd = ends[0];
    ready = child > 0 ? poll(&wait, 1, (int)(deadline_s * 1e3)) : -1;
    told = ready > 0 && read(ends[0], out, sizeof *out) == (ssize_t)sizeof *out;
    close(ends[0]);
    if (child > 0) {
        (void)kill(child, SIGKILL);
        (void)waitpid(child, NULL, ready > 0 ? 0 : WNOHANG);
    }
    if (ready == 0) {
        *out = (lt_mount_reading){.stalled = true};
        return LT_OK;
    }
    if (!told) {
        LT_FAIL(LT_ERR_IO, "%s: the file system could not be queried", path);
    }
    return LT_OK;
}

/* ---- Time ---- */

static lt_err ask_time(const lt_machine_source *s, lt_time_reading *out) {
    struct timex t = {0};
    const int state = adjtimex(&t);
    (void)s;
    if (state < 0) {
        LT_FAIL(LT_ERR_IO, "adjtimex: %s", strerror(errno));
    }
    out->synchronised = state != TIME_ERROR && (t.status & STA_UNSYNC) == 0;
    out->error_s = (double)t.maxerror * 1e-6;
    return LT_OK;
}

lt_err lt_machine_open(lt_machine_source *s, const char *folder) {
    *s = (lt_machine_source){.gpus = lt_machine_gpus_nvml, .mount = ask_mount, .time = ask_time};
    return folder[0] != '\0' ? lt_machine_open_recorded(s, folder) : LT_OK;
}

void lt_machine_close(lt_machine_source *s) {
    json_decref(s->recorded);
    s->recorded = NULL;
}
