/* links.c: network interfaces and InfiniBand ports, from /sys. An interface is checked if it
 * belongs to a device and is switched on, because one that is not configured needs no link. */
#include <stdlib.h>
#include <string.h>

#include "platform/health/facts.h"

#define IFF_UP_BIT  1
#define PORT_ACTIVE 4 /* "4: ACTIVE" */

static double number_or_nan(const lt_machine_source *s, const char *folder, const char *name) {
    double value = 0.0;
    return lt_machine_number(s, &value, "%s/%s", folder, name) ? value : NAN;
}

/* The sum of those counters that exist; NAN: there is none. */
static double sum_of(const lt_machine_source *s, const char *folder, const char *const *names) {
    double sum = NAN;
    for (; *names != NULL; names++) {
        sum = lt_reading_add(sum, number_or_nan(s, folder, *names));
    }
    return sum;
}

static void add_interface(lt_facts *f, const lt_machine_source *s, const char *name) {
    static const char *const errors[] = {"statistics/rx_errors", "statistics/tx_errors", NULL},
                             *const flaps[] = {"carrier_down_count", NULL};
    char folder[512], device[LT_PATH_BYTES + 600], flags[32], state[32];
    double mbits;

    snprintf(folder, sizeof folder, "/sys/class/net/%s", name);
    snprintf(device, sizeof device, "%s%s/device", s->root, folder);
    if (!lt_file_exists(device) || !lt_machine_text(s, flags, sizeof flags, "%s/flags", folder) ||
        (strtol(flags, NULL, 16) & IFF_UP_BIT) == 0) {
        return;
    }
    if (lt_machine_text(s, state, sizeof state, "%s/operstate", folder)) {
        const bool up = strcmp(state, "up") == 0 || strcmp(state, "unknown") == 0;
        lt_facts_add(f, LT_CHECK_NET_DOWN, name, !up);
    }
    mbits = number_or_nan(s, folder, "speed");
    lt_facts_add(f, LT_CHECK_NET_SPEED, name, mbits > 0.0 ? mbits * 1e-3 : NAN);
    lt_facts_add(f, LT_CHECK_NET_ERRORS, name, sum_of(s, folder, errors));
    lt_facts_add(f, LT_CHECK_NET_FLAPS, name, sum_of(s, folder, flaps));
}

static void add_port(lt_facts *f, const lt_machine_source *s, const char *device,
                     const char *port) {
    static const char *const errors[] = {"counters/symbol_error", "counters/port_rcv_errors",
                                         "counters/local_link_integrity_errors",
                                         "counters/excessive_buffer_overrun_errors", NULL},
                             *const flaps[] = {"counters/link_downed",
                                               "counters/link_error_recovery", NULL};
    char folder[1024], object[64];

    snprintf(folder, sizeof folder, "/sys/class/infiniband/%s/ports/%s", device, port);
    snprintf(object, sizeof object, "%s/%s", device, port);
    lt_facts_add(f, LT_CHECK_IB_DOWN, object, number_or_nan(s, folder, "state") != PORT_ACTIVE);
    lt_facts_add(f, LT_CHECK_IB_SPEED, object, number_or_nan(s, folder, "rate"));
    lt_facts_add(f, LT_CHECK_IB_ERRORS, object, sum_of(s, folder, errors));
    lt_facts_add(f, LT_CHECK_IB_FLAPS, object, sum_of(s, folder, flaps));
}

static void add_ports(lt_facts *f, const lt_machine_source *s, const char *device) {
    char folder[512], **ports = NULL;
    size_t n = 0;
    snprintf(folder, sizeof folder, "/sys/class/infiniband/%s/ports", device);
    if (!lt_machine_names(s, &ports, &n, folder)) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        add_port(f, s, device, ports[i]);
    }
    lt_file_list_free(ports, n);
}

void lt_facts_of_links(lt_facts *f, const lt_facts_plan *p) {
    static const struct {
        const char *folder;
        void (*add)(lt_facts *f, const lt_machine_source *s, const char *name);
    } kinds[] = {{"/sys/class/net", add_interface}, {"/sys/class/infiniband", add_ports}};

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        char **names = NULL;
        size_t n = 0;
        if (!lt_machine_names(p->source, &names, &n, kinds[k].folder)) {
            continue;
        }
        for (size_t i = 0; i < n; i++) {
            kinds[k].add(f, p->source, names[i]);
        }
        lt_file_list_free(names, n);
    }
}
