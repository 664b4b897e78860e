/* Fuzz target: what a health check reads: kernel messages (/dev/kmsg) and the history of a node,
 * in which any line may be cut or damaged. Whatever they contain, values are finite numbers. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz_file.h"
#include "platform/health/history.h"

static char device[96], messages[112];

static void remove_device(void) {
    unlink(messages);
    rmdir(device);
}

static void read_log(const uint8_t *data, size_t size) {
    static int log = -1;
    static lt_machine_source source;
    static lt_facts f; /* Too large for the stack. */
    const lt_facts_plan plan = {.source = &source, .mounts = "", .log_window_s = 86400.0};
    if (log < 0) {
        snprintf(device, sizeof device, "%s/dev", fuzz_folder());
        snprintf(messages, sizeof messages, "%s/kmsg", device);
        atexit(remove_device);
        mkdir(device, 0700);
        log = fuzz_folder_file("dev/kmsg");
        snprintf(source.root, sizeof source.root, "%s", fuzz_folder());
    }
    fuzz_write(log, data, size);
    lt_facts_clear(&f);
    f.uptime_s = 1e5;
    f.n_gpus = 1;
    snprintf(f.gpus[0].pci, sizeof f.gpus[0].pci, "00000000:18:00.0");
    lt_facts_of_log(&f, &plan);
    for (int i = 0; i < f.n; i++) {
        if (!isfinite(f.facts[i].value) || f.facts[i].value < 0.0) {
            abort();
        }
    }
}

static void read_history(const uint8_t *data, size_t size) {
    static int lines = -1;
    char path[96];
    lt_history h;
    if (lines < 0) {
        (void)fuzz_folder_file("history.lock");
        lines = fuzz_folder_file("history");
    }
    fuzz_write(lines, data, size);
    snprintf(path, sizeof path, "%s/history", fuzz_folder());
    if (lt_history_open(&h, path) == LT_OK) {
        lt_fact fact = {.check = LT_CHECK_GPU_REPLAYS, .object = "gpu0", .value = 7.0};
        static lt_facts f = {.boot = "boot", .uptime_s = 4000.0};
        (void)lt_history_rate(&h, &f, &fact);
    }
    lt_history_close(&h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size > 0) {
        (data[0] % 2 == 0 ? read_log : read_history)(data + 1, size - 1);
    }
    return 0;
}
