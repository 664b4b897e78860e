/* identity.c: see identity.h. */
#include "platform/telemetry/identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/shm.h"

const char *lt_run_name(char out[LT_RUN_NAME_BYTES], const char *folder) {
    const char *end = folder + strlen(folder), *begin;
    while (end > folder + 1 && end[-1] == '/') {
        end--;
    }
    begin = end;
    while (begin > folder && begin[-1] != '/') {
        begin--;
    }
    snprintf(out, LT_RUN_NAME_BYTES, "%.*s", (int)(end - begin), begin);
    return out;
}

lt_identity lt_identity_of_process(void) {
    const char *epoch = getenv(LT_ENV_EPOCH), *restarts = getenv("SLURM_RESTART_COUNT");
    if (epoch != NULL) {
        const uint64_t both = strtoull(epoch, NULL, 10);
        return (lt_identity){.attempt = (uint32_t)(both >> 32), .epoch = (uint32_t)both};
    }
    return (lt_identity){.attempt = restarts != NULL ? (uint32_t)strtoul(restarts, NULL, 10) : 0};
}
