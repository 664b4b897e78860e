/* recorded.h: a machine recorded in a folder: its files of /proc, /sys and /dev, and
 * recorded.json:
 *
 *     {"gpus": [{"index": 0, "name": ..., "uuid": ..., "pci": ..., READING: number, ...}, ...],
 *      "gpus_error": "the error of an NVML that does not work",
 *      "mounts": {"/": {"bytes": ..., "free_bytes": ..., "files": ..., "free_files": ...},
 *                 "/scratch": {"stalled": true}},
 *      "time": {"synchronised": true, "error_s": 0.01}}
 *
 * READING is a field of lt_gpu_reading. Neither gpus nor gpus_error: there is no driver. A key that
 * is not one of these is refused. */
#ifndef LT_PLATFORM_HEALTH_RECORDED_H
#define LT_PLATFORM_HEALTH_RECORDED_H

#include "platform/health/machine.h"

LT_MUST_USE lt_err lt_machine_open_recorded(lt_machine_source *s, const char *folder);

#endif
