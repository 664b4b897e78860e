/* page_groups.c: see page_groups.h. */
#include "model/infer/page_groups.h"

void lt_page_groups_one(lt_page_groups *out, const lt_model_spec *spec, bool windowed) {
    *out = (lt_page_groups){
        .n_full = !windowed, .n_windowed = windowed, .n_places = spec->n_layers};
    for (int64_t i = 0; i < spec->n_layers; i++) {
        out->place[i] = (uint8_t)i;
    }
}

/* Put the layers that have a window, or the others, into groups from `first` on. */
static void fill(lt_page_groups *out, const lt_model_spec *spec, bool windowed, int64_t first) {
    int64_t n = 0;
    for (int64_t i = 0; i < spec->n_layers; i++) {
        if ((lt_model_layer(spec, i).window > 0) == windowed) {
            out->group[i] = (uint8_t)(first + n / out->n_places);
            out->place[i] = (uint8_t)(n % out->n_places);
            n++;
        }
    }
}

void lt_page_groups_choose(lt_page_groups *out, const lt_model_spec *spec, int64_t all,
                           int64_t near) {
    int64_t least = spec->n_layers * all, n_windowed = 0;
    lt_page_groups_one(out, spec, false);
    for (int64_t i = 0; i < spec->n_layers; i++) {
        n_windowed += lt_model_layer(spec, i).window > 0;
    }
    /* Try the largest number first: of two divisions that take the same memory, the one with
     * fewer groups is chosen. */
    for (int64_t places = spec->n_layers - 1; places > 0; places--) {
        const int64_t full = lt_div_up(spec->n_layers - n_windowed, places),
                      windowed = lt_div_up(n_windowed, places),
                      taken = places * (full * all + windowed * near);
        if (full + windowed <= LT_MAX_PAGE_GROUPS && taken < least) {
            least = taken;
            out->n_full = full;
            out->n_windowed = windowed;
            out->n_places = places;
        }
    }
    if (out->n_windowed > 0) {
        fill(out, spec, false, 0);
        fill(out, spec, true, out->n_full);
    }
}
