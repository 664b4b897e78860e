/* recorded.c: see recorded.h. */
#include "platform/health/recorded.h"

#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/option.h"

#define RECORDED_BYTES ((size_t)16 << 20)

static const char name[] = "recorded.json";

typedef struct {
    const char *name;
    size_t offset;
} reading_row;
#define READING_ROW(field, dcgm, type, help) {#field, offsetof(lt_gpu_reading, field)},
static const reading_row readings[] = {LT_GPU_READING_MAP(READING_ROW)};
#undef READING_ROW

static void copy_text(char *to, size_t room, const json_t *value) {
    if (json_is_string(value)) {
        snprintf(to, room, "%s", json_string_value(value));
    }
}

static lt_err read_gpu(lt_gpu_reading *g, json_t *object, int index) {
    const char *key;
    json_t *value;

    *g = lt_gpu_reading_unknown(index);
    copy_text(g->name, sizeof g->name, json_object_get(object, "name"));
    copy_text(g->uuid, sizeof g->uuid, json_object_get(object, "uuid"));
    copy_text(g->pci, sizeof g->pci, json_object_get(object, "pci"));
    json_object_foreach(object, key, value) {
        const reading_row *row = lt_name_find(key, readings, sizeof *readings,
                                              sizeof readings / sizeof *readings);
        if (json_is_string(value) || strcmp(key, "index") == 0) {
            continue;
        }
        if (row == NULL || !json_is_number(value)) {
            LT_FAIL(LT_ERR_FORMAT, "%s: gpu %d: '%s' is not a reading, or not a number", name,
                    index, key);
        }
        *(double *)(void *)((char *)g + row->offset) = json_number_value(value);
    }
    return LT_OK;
}

static lt_err recorded_gpus(const lt_machine_source *s, lt_gpu_reading *out, int *n) {
    json_t *gpus = json_object_get(s->recorded, "gpus");
    const char *why = json_string_value(json_object_get(s->recorded, "gpus_error"));

    *n = 0;
    if (why != NULL) {
        LT_FAIL(LT_ERR_DEVICE, "NVML: %s", why);
    }
    if (gpus == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "NVML (libnvidia-ml.so.1) is not there");
    }
    if (json_array_size(gpus) > LT_HEALTH_GPUS) {
        LT_FAIL(LT_ERR_LIMIT, "%s: %zu gpus, at most %d are read", name, json_array_size(gpus),
                LT_HEALTH_GPUS);
    }
    for (; *n < (int)json_array_size(gpus); ++*n) {
        LT_TRY(read_gpu(&out[*n], json_array_get(gpus, (size_t)*n), *n));
    }
    return LT_OK;
}

static lt_err recorded_mount(const lt_machine_source *s, lt_mount_reading *out, const char *path,
                             double deadline_s) {
    const json_t *m = json_object_get(json_object_get(s->recorded, "mounts"), path);
    (void)deadline_s;
    *out = (lt_mount_reading){0};
    if (m == NULL) {
        LT_FAIL(LT_ERR_IO, "%s: the file system could not be queried", path);
    }
    LT_TRY(lt_json_bool(m, "stalled", &out->stalled, true, name));
    LT_TRY(lt_json_f64(m, "bytes", &out->bytes, out->stalled, name));
    LT_TRY(lt_json_f64(m, "free_bytes", &out->free_bytes, out->stalled, name));
    LT_TRY(lt_json_f64(m, "files", &out->files, out->stalled, name));
    return lt_json_f64(m, "free_files", &out->free_files, out->stalled, name);
}

static lt_err recorded_time(const lt_machine_source *s, lt_time_reading *out) {
    const json_t *t = json_object_get(s->recorded, "time");
    if (t == NULL) {
        LT_FAIL(LT_ERR_IO, "adjtimex: not recorded");
    }
    LT_TRY(lt_json_bool(t, "synchronised", &out->synchronised, false, name));
    return lt_json_f64(t, "error_s", &out->error_s, false, name);
}

lt_err lt_machine_open_recorded(lt_machine_source *s, const char *folder) {
    static const char *const keys[] = {"gpus", "gpus_error", "mounts", "time", NULL};
    char path[LT_PATH_BYTES];
    const char *key;
    json_t *value;

    LT_TRY(lt_path_join(path, folder, name));
    LT_TRY(lt_json_load(&s->recorded, path, RECORDED_BYTES));
    /* Otherwise nothing would be read, and the machine would look fit. */
    if (!json_is_object(s->recorded)) {
        LT_FAIL(LT_ERR_FORMAT, "%s is no JSON object", path);
    }
    json_object_foreach(s->recorded, key, value) {
        if (!lt_name_is_one_of(key, keys)) {
            LT_FAIL(LT_ERR_FORMAT, "%s: unknown key '%s'", path, key);
        }
    }
    snprintf(s->root, sizeof s->root, "%s", folder);
    s->gpus = recorded_gpus;
    s->mount = recorded_mount;
    s->time = recorded_time;
    return LT_OK;
}
