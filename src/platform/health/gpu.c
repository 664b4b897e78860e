/* gpu.c: tier 1 for GPUs: facts from their readings. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "platform/health/facts.h"

/* Bits of the throttle reasons, from NVML's header. */
#define SLOWED_BY_HARDWARE 0x08u
#define SLOWED_BY_HEAT     (0x20u | 0x40u)
#define POWER_BRAKE        0x80u

/* A GPU that is less busy than this may lower its clocks to save power. */
#define BUSY_PERCENT 50.0

#define VENDOR_NVIDIA 0x10DE
#define CLASS_VGA     0x0300
#define CLASS_3D      0x0302

/* Read a hexadecimal number of sysfs, such as "0x10de"; -1: unreadable. */
static long bus_number(const lt_machine_source *s, const char *device, const char *what) {
    char text[32];
    return lt_machine_text(s, text, sizeof text, "/sys/bus/pci/devices/%s/%s", device, what)
               ? strtol(text, NULL, 16)
               : -1;
}

static int gpus_on_bus(const lt_machine_source *s) {
    char **names = NULL;
    size_t n = 0;
    int found = 0;
    if (!lt_machine_names(s, &names, &n, "/sys/bus/pci/devices")) {
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        const long kind = bus_number(s, names[i], "class") >> 8;
        found += bus_number(s, names[i], "vendor") == VENDOR_NVIDIA &&
                 (kind == CLASS_VGA || kind == CLASS_3D);
    }
    lt_file_list_free(names, n);
    return found;
}

static double has_bits(double mask, unsigned bits) {
    return isnan(mask) ? NAN : ((unsigned long long)mask & bits) != 0;
}

static void add_gpu(lt_facts *f, const lt_gpu_reading *g) {
    /* Errors of all kinds; a kind that the GPU does not report adds nothing. */
    const double errors[] = {g->nvlink_replays, g->nvlink_recoveries, g->nvlink_crc_flits,
                             g->nvlink_crc_data};
    double link_errors = NAN;
    char object[16];

    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        link_errors = lt_reading_add(link_errors, errors[i]);
    }
    snprintf(object, sizeof object, "gpu%d", g->index);
    lt_facts_add(f, LT_CHECK_GPU_ECC_UNCORRECTED, object, g->ecc_uncorrected);
    lt_facts_add(f, LT_CHECK_GPU_ECC_CORRECTED, object, g->ecc_corrected);
    lt_facts_add(f, LT_CHECK_GPU_ROWS_PENDING, object, g->rows_pending);
    lt_facts_add(f, LT_CHECK_GPU_ROWS_FAILED, object, g->rows_failed);
    lt_facts_add(f, LT_CHECK_GPU_ROWS_REMAPPED, object, g->rows_uncorrected);
    lt_facts_add(f, LT_CHECK_GPU_TEMPERATURE, object, g->temperature_c);
    lt_facts_add(f, LT_CHECK_GPU_MEMORY_TEMPERATURE, object, g->memory_temperature_c);
    lt_facts_add(f, LT_CHECK_GPU_SLOW_HEAT, object, has_bits(g->throttle_reasons, SLOWED_BY_HEAT));
    lt_facts_add(f, LT_CHECK_GPU_SLOW_HARDWARE, object,
                 has_bits(g->throttle_reasons, SLOWED_BY_HARDWARE));
    lt_facts_add(f, LT_CHECK_GPU_POWER_BRAKE, object, has_bits(g->throttle_reasons, POWER_BRAKE));
    if (g->utilisation >= BUSY_PERCENT) {
        lt_facts_add(f, LT_CHECK_GPU_CLOCK, object, g->sm_clock_mhz / g->sm_clock_max_mhz);
    }
    lt_facts_add(f, LT_CHECK_GPU_WIDTH, object, g->pcie_width / g->pcie_width_max);
    lt_facts_add(f, LT_CHECK_GPU_REPLAYS, object, g->pcie_replays);
    lt_facts_add(f, LT_CHECK_GPU_NVLINKS_DOWN, object, g->nvlinks_down);
    lt_facts_add(f, LT_CHECK_GPU_NVLINK_ERRORS, object, link_errors);
}

void lt_facts_of_gpus(lt_facts *f, const lt_facts_plan *p) {
    const int on_bus = gpus_on_bus(p->source);
    const lt_err err = p->source->gpus(p->source, f->gpus, &f->n_gpus);

    if (err == LT_ERR_UNSUPPORTED) {
        /* A machine without GPUs, or a container that was given none. */
        lt_facts_skip(f, "gpu", "%s; GPUs on the PCI bus: %d", lt_error_message(), on_bus);
        return;
    }
    if (err != LT_OK) {
        lt_facts_skip(f, "gpu", "%s", lt_error_message());
        f->n_gpus = 0;
    }
    lt_facts_add(f, LT_CHECK_GPU_MISSING, "", on_bus > f->n_gpus ? on_bus - f->n_gpus : 0);
    for (int i = 0; i < f->n_gpus; i++) {
        add_gpu(f, &f->gpus[i]);
    }
}
