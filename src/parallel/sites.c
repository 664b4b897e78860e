/* sites.c: see sites.h. */
#include "parallel/sites.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"

#define MAGIC          "LTOUTER1"
#define JSON_BYTES_MAX ((size_t)1 << 16)
#define NAME_BYTES     64
/* Time between two looks at the folder. It is short at first, since equally fast sites finish
 * together. */
#define LOOK_FIRST_NS 1000000L
#define LOOK_MOST_NS  100000000L

/* Header of every file. It is little-endian, as are the machines that take part. */
typedef struct {
    char magic[8];
    int64_t step, n_elements, payload_bytes;
    int32_t site, part, bits, fragment;
    uint64_t base, payload;
} header;
_Static_assert(sizeof(header) == 64, "the payload begins at a multiple of 64 bytes");

/* ---- Paths ---- */

static lt_err step_path(char path[LT_PATH_BYTES], const lt_sites *s, int64_t step) {
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "step-%09lld", (long long)step);
    return lt_path_join(path, s->o.folder, name);
}

static lt_err file_path(char path[LT_PATH_BYTES], const lt_sites *s, int64_t step,
                        const char *name) {
    char folder[LT_PATH_BYTES];
    LT_TRY(step_path(folder, s, step));
    return lt_path_join(path, folder, name);
}

static lt_err part_path(char path[LT_PATH_BYTES], const lt_sites *s, int64_t step, int site,
                        int part) {
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "site-%d.part-%d", site, part);
    return file_path(path, s, step, name);
}

static lt_err outer_path(char path[LT_PATH_BYTES], const lt_sites *s, int64_t step, int part) {
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "outer.part-%d", part);
    return file_path(path, s, step, name);
}

static int64_t step_of(const char *name) {
    long long step;
    int end = 0;
    return sscanf(name, "step-%lld%n", &step, &end) == 1 && name[end] == '\0' ? step : -1;
}

/* ---- Files that are written once ---- */

/* The first caller gets this name. *first false: the name is taken, and nothing was changed. The
 * file is complete when it gets the name. */
static lt_err write_first(const lt_sites *s, const char *path, const char *text, bool *first) {
    char aside[LT_PATH_BYTES];
    int e = 0;
    if (snprintf(aside, sizeof aside, "%s.site-%d", path, s->o.site) >= (int)sizeof aside) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", path);
    }
    LT_TRY(lt_file_write_atomic(aside, text, strlen(text)));
    *first = link(aside, path) == 0;
    e = *first ? 0 : errno;
    (void)unlink(aside);
    if (e != 0 && e != EEXIST) {
        LT_FAIL(LT_ERR_IO, "link %s to %s: %s (sites meet on a file system with hard links)", path,
                aside, strerror(e));
    }
    return lt_file_sync_parent(path);
}

/* ---- Who takes part ---- */

static lt_err read_members(const lt_sites *s, int64_t step, bool member[LT_SITES_MAX],
                           bool *decided) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    json_t *root = NULL;
    const json_t *sites;
    LT_TRY(file_path(path, s, step, "members"));
    *decided = lt_file_exists(path);
    if (!*decided) {
        return LT_OK;
    }
    memset(member, 0, LT_SITES_MAX * sizeof *member);
    LT_TRY_DONE(lt_json_load(&root, path, JSON_BYTES_MAX));
    sites = json_object_get(root, "sites");
    for (size_t i = 0; i < json_array_size(sites); i++) {
        const json_int_t site = json_integer_value(json_array_get(sites, i));
        if (site < 0 || site >= s->o.n_sites) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: site %lld of %d", path, (long long)site, s->o.n_sites);
        }
        member[site] = true;
    }
    if (json_array_size(sites) == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s names no site", path);
    }
done:
    json_decref(root);
    return err;
}

static lt_err has_all_parts(const lt_sites *s, int site, bool *has) {
    char path[LT_PATH_BYTES];
    for (int part = 0; *has && part < s->o.n_parts; part++) {
        LT_TRY(part_path(path, s, s->round.step, site, part));
        *has = lt_file_exists(path);
    }
    return LT_OK;
}

/* n: number of sites whose files are all there. */
static lt_err look_for_sites(const lt_sites *s, bool present[LT_SITES_MAX], int *n) {
    *n = 0;
    for (int site = 0; site < s->o.n_sites; site++) {
        if (!present[site]) {
            present[site] = true;
            LT_TRY(has_all_parts(s, site, &present[site]));
        }
        *n += present[site];
    }
    return LT_OK;
}

/* If another site has decided meanwhile, its decision holds. */
static lt_err decide(const lt_sites *s, const bool present[LT_SITES_MAX]) {
    char path[LT_PATH_BYTES];
    json_t *sites = json_array();
    char *text;
    bool first;
    lt_err err;
    for (int site = 0; site < s->o.n_sites; site++) {
        if (present[site]) {
            json_array_append_new(sites, json_integer(site));
        }
    }
    json_t *root = json_pack("{s:I, s:o}", "step", (json_int_t)s->round.step, "sites", sites);
    text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "members of a round");
    }
    err = file_path(path, s, s->round.step, "members");
    err = err == LT_OK ? write_first(s, path, text, &first) : err;
    free(text);
    return err;
}

static void pause_look(long *ns) {
    const struct timespec t = {.tv_nsec = *ns};
    (void)nanosleep(&t, NULL);
    *ns = 2 * *ns < LOOK_MOST_NS ? 2 * *ns : LOOK_MOST_NS;
}

/* Whether another round must be decided first. */
static lt_err is_early(const lt_sites *s, bool *early) {
    char path[LT_PATH_BYTES];
    LT_TRY(file_path(path, s, s->round.after, "members"));
    *early = s->round.after > 0 && !lt_file_exists(path);
    return LT_OK;
}

/* Wait until the round is decided; a rank that leads may decide it. */
static lt_err wait_for_members(lt_sites *s) {
    const double since_s = lt_clock_s();
    bool present[LT_SITES_MAX] = {false}, decided = false, early = false;
    long look_ns = LOOK_FIRST_NS;
    while (!atomic_load(&s->cancelled)) {
        int n = 0;
        LT_TRY(read_members(s, s->round.step, s->member, &decided));
        if (decided) {
            return LT_OK;
        }
        LT_TRY(s->o.leads ? look_for_sites(s, present, &n) : LT_OK);
        LT_TRY(is_early(s, &early));
        if (!early && (n == s->o.n_sites || (n > 0 && lt_clock_s() - since_s > s->o.deadline_s))) {
            LT_TRY(decide(s, present));
            continue;
        }
        pause_look(&look_ns);
    }
    return LT_OK;
}

/* ---- Files of deltas ---- */

static lt_err check_header(const lt_sites *s, const header *h, const header *want,
                           const char *path) {
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s is not a file of a round", path);
    }
    if (h->step != want->step || h->site != want->site || h->part != want->part ||
        h->bits != want->bits || h->fragment != want->fragment ||
        h->n_elements != want->n_elements || h->payload_bytes != want->payload_bytes) {
        LT_FAIL(LT_ERR_STATE,
                "%s: step %lld, site %d, part %d of %d, fragment %d, %lld parameters in %lld "
                "bytes; wanted are step %lld, site %d, part %d, fragment %d, %lld parameters in "
                "%lld bytes",
                path, (long long)h->step, (int)h->site, (int)h->part, s->o.n_parts,
                (int)h->fragment, (long long)h->n_elements, (long long)h->payload_bytes,
                (long long)want->step, (int)want->site, (int)want->part, (int)want->fragment,
                (long long)want->n_elements, (long long)want->payload_bytes);
    }
    return LT_OK;
}

static header header_of(const lt_sites *s, lt_sites_round round, int site) {
    header h = {.step = round.step,
                .n_elements = s->o.n_elements,
                .payload_bytes = (int64_t)round.payload_bytes,
                .site = site,
                .part = s->o.part,
                .fragment = round.fragment,
                .bits = (int32_t)s->o.bits};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    return h;
}

/* Map a file and check all fields of its header. */
static lt_err map_file(lt_file_map *map, const lt_sites *s, const char *path, const header *want,
                       uint64_t *base) {
    header h;
    lt_err err = LT_OK;
    LT_TRY(lt_file_map_open(map, path));
    if (map->size_bytes != sizeof h + (size_t)want->payload_bytes) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s has %zu bytes, not %zu", path, map->size_bytes,
                     sizeof h + (size_t)want->payload_bytes);
    }
    memcpy(&h, map->data, sizeof h);
    LT_TRY_DONE(check_header(s, &h, want, path));
    if (XXH3_64bits(map->data + sizeof h, (size_t)h.payload_bytes) != h.payload) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s is damaged: its checksum is another", path);
    }
    *base = h.base;
done:
    if (err != LT_OK) {
        lt_file_map_close(map);
    }
    return err;
}

/* Map the members' files of this rank's part. */
static lt_err map_members(lt_sites *s) {
    uint64_t first_base = 0, base = 0;
    int first = -1;
    char path[LT_PATH_BYTES];
    for (int site = 0; s->o.part >= 0 && site < s->o.n_sites; site++) {
        const header want = header_of(s, s->round, site);
        if (!s->member[site]) {
            continue;
        }
        LT_TRY(part_path(path, s, s->round.step, site, s->o.part));
        LT_TRY(map_file(&s->maps[site], s, path, &want, &base));
        if (first >= 0 && base != first_base) {
            LT_FAIL(LT_ERR_STATE,
                    "round of step %lld: sites %d and %d began it with other outer parameters "
                    "than each other (part %d); one of them is not of this run",
                    (long long)s->round.step, first, site, s->o.part);
        }
        if (site == s->o.site && s->base != 0 && base != s->base) {
            LT_FAIL(LT_ERR_STATE,
                    "round of step %lld: this site left a file that begins from other outer "
                    "parameters than it has now; a run that begins again meets in an empty folder",
                    (long long)s->round.step);
        }
        first = first >= 0 ? first : site;
        first_base = base;
    }
    return LT_OK;
}

static void unmap(lt_sites *s) {
    for (int site = 0; site < s->o.n_sites; site++) {
        lt_file_map_close(&s->maps[site]);
    }
}

/* ---- The thread ---- */

static lt_err post(lt_sites *s) {
    header h = header_of(s, s->round, s->o.site);
    char path[LT_PATH_BYTES];
    if (s->o.part < 0 || lt_sites_has_posted(s, s->round.step)) {
        return LT_OK;
    }
    h.base = s->base;
    h.payload = XXH3_64bits(s->file + sizeof h, s->round.payload_bytes);
    memcpy(s->file, &h, sizeof h);
    LT_TRY(part_path(path, s, s->round.step, s->o.site, s->o.part));
    LT_TRY(lt_file_make_parent(path));
    return lt_file_write_atomic(path, s->file, sizeof h + s->round.payload_bytes);
}

static lt_err run_round(lt_sites *s) {
    LT_TRY(post(s));
    atomic_store(&s->posted, true);
    LT_TRY(wait_for_members(s));
    return atomic_load(&s->cancelled) ? LT_OK : map_members(s);
}

static void *work(void *arg) {
    lt_sites *s = arg;
    s->err = run_round(s);
    lt_failure_keep(&s->failure, s->err);
    atomic_store(&s->posted, true);
    atomic_store(&s->done, true);
    return NULL;
}

lt_err lt_sites_begin(lt_sites *s, lt_sites_round round, uint64_t base) {
    int e;
    LT_ASSERT(!s->has_thread && round.payload_bytes <= s->o.payload_bytes);
    s->round = round;
    s->base = base;
    atomic_store(&s->posted, false);
    atomic_store(&s->done, false);
    atomic_store(&s->cancelled, false);
    e = pthread_create(&s->thread, NULL, work, s);
    if (e != 0) {
        LT_FAIL(LT_ERR_OOM, "thread of a round: %s", strerror(e));
    }
    s->has_thread = true;
    return LT_OK;
}

bool lt_sites_has_posted(const lt_sites *s, int64_t step) {
    char path[LT_PATH_BYTES];
    return s->o.part < 0 ||
           (part_path(path, s, step, s->o.site, s->o.part) == LT_OK && lt_file_exists(path));
}

static lt_err join(lt_sites *s) {
    if (!s->has_thread) {
        return LT_OK;
    }
    (void)pthread_join(s->thread, NULL);
    s->has_thread = false;
    return s->err != LT_OK ? lt_failure_raise(&s->failure) : LT_OK;
}

lt_err lt_sites_poll(lt_sites *s, bool *done) {
    *done = atomic_load(&s->done);
    return *done ? join(s) : LT_OK;
}

lt_err lt_sites_wait_posted(lt_sites *s) {
    long look_ns = LOOK_FIRST_NS;
    while (s->has_thread && !atomic_load(&s->posted)) {
        pause_look(&look_ns);
    }
    return s->has_thread && atomic_load(&s->done) ? join(s) : LT_OK;
}

void lt_sites_end(lt_sites *s) {
    atomic_store(&s->cancelled, true);
    if (join(s) != LT_OK) {
        lt_log_warn("%s", lt_error_message());
    }
    unmap(s);
}

/* ---- What was read ---- */

void *lt_sites_payload(lt_sites *s) {
    LT_ASSERT(!s->has_thread);
    return s->file + sizeof(header);
}

const void *lt_sites_deltas(const lt_sites *s, int site) {
    return s->member[site] && s->maps[site].data != NULL ? s->maps[site].data + sizeof(header)
                                                         : NULL;
}

int lt_sites_members(const lt_sites *s) {
    int n = 0;
    for (int site = 0; site < s->o.n_sites; site++) {
        n += s->member[site];
    }
    return n;
}

size_t lt_sites_received(const lt_sites *s) {
    size_t bytes = 0;
    for (int site = 0; site < s->o.n_sites; site++) {
        bytes += site != s->o.site ? s->maps[site].size_bytes : 0;
    }
    return bytes;
}

/* ---- Rounds of the past ---- */

lt_err lt_sites_decided(const lt_sites *s, int64_t after, int64_t **steps, size_t *n,
                        int64_t *without) {
    lt_err err = LT_OK;
    char **names = NULL;
    size_t n_names = 0;
    int64_t *found = NULL;
    *n = 0;
    *without = -1;
    LT_TRY_DONE(lt_file_list(&names, &n_names, s->o.folder));
    found = calloc(n_names + 1, sizeof *found);
    if (found == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "rounds of %s", s->o.folder);
    }
    for (size_t i = 0; i < n_names; i++) { /* Names are sorted, and so are steps. */
        const int64_t step = step_of(names[i]);
        bool member[LT_SITES_MAX], decided = false;
        if (step > after) {
            LT_TRY_DONE(read_members(s, step, member, &decided));
        }
        if (decided) {
            found[(*n)++] = step;
            *without = *without < 0 && !member[s->o.site] ? step : *without;
        }
    }
    *steps = found;
    found = NULL;
done:
    lt_file_list_free(names, n_names);
    free(found);
    return err;
}

lt_err lt_sites_fragment(lt_sites *s, int64_t step, int *fragment) {
    const int part = s->o.part > 0 ? s->o.part : 0;
    char path[LT_PATH_BYTES];
    lt_file_map map = {0};
    header h;
    int site = 0;
    bool decided;
    LT_TRY(read_members(s, step, s->member, &decided));
    LT_ASSERT(decided);
    while (site < s->o.n_sites - 1 && !s->member[site]) {
        site++;
    }
    LT_TRY(part_path(path, s, step, site, part));
    LT_TRY(lt_file_map_open(&map, path));
    if (map.size_bytes < sizeof h) {
        lt_file_map_close(&map);
        LT_FAIL(LT_ERR_FORMAT, "%s is not a file of a round", path);
    }
    memcpy(&h, map.data, sizeof h);
    lt_file_map_close(&map);
    *fragment = h.fragment;
    return LT_OK;
}

lt_err lt_sites_read(lt_sites *s, lt_sites_round round) {
    bool decided;
    LT_ASSERT(!s->has_thread);
    unmap(s);
    s->round = round;
    s->base = 0;
    LT_TRY(read_members(s, round.step, s->member, &decided));
    LT_ASSERT(decided);
    return map_members(s);
}

/* ---- Outer parameters ---- */

static size_t outer_bytes(const lt_sites *s) {
    return 2 * (size_t)s->o.n_elements * sizeof(float);
}

lt_err lt_sites_keep_outer(const lt_sites *s, int64_t step, const float *both) {
    const size_t bytes = outer_bytes(s);
    header h = header_of(s, (lt_sites_round){.step = step, .payload_bytes = bytes}, -1);
    char path[LT_PATH_BYTES];
    uint8_t *file = malloc(sizeof h + bytes);
    lt_err err;
    if (file == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu bytes of outer parameters", bytes);
    }
    h.payload = XXH3_64bits(both, bytes);
    memcpy(file, &h, sizeof h);
    memcpy(file + sizeof h, both, bytes);
    err = outer_path(path, s, step, s->o.part);
    err = err == LT_OK ? lt_file_write_atomic(path, file, sizeof h + bytes) : err;
    free(file);
    return err;
}

lt_err lt_sites_newest_outer(const lt_sites *s, int64_t after, int64_t *step) {
    char **names = NULL, path[LT_PATH_BYTES];
    size_t n = 0;
    lt_err err = LT_OK;
    *step = -1;
    LT_TRY(lt_file_list(&names, &n, s->o.folder));
    for (size_t i = n; i-- > 0 && *step < 0;) {
        const int64_t at = step_of(names[i]);
        bool has = at > after;
        for (int part = 0; has && part < s->o.n_parts; part++) {
            LT_TRY_DONE(outer_path(path, s, at, part));
            has = lt_file_exists(path);
        }
        *step = has ? at : -1;
    }
done:
    lt_file_list_free(names, n);
    return err;
}

lt_err lt_sites_map_outer(const lt_sites *s, int64_t step, lt_file_map *map, const float **both) {
    const header want = header_of(
        s, (lt_sites_round){.step = step, .payload_bytes = outer_bytes(s)}, -1);
    char path[LT_PATH_BYTES];
    uint64_t base;
    LT_TRY(outer_path(path, s, step, s->o.part));
    LT_TRY(map_file(map, s, path, &want, &base));
    *both = (const float *)(const void *)(map->data + sizeof(header));
    return LT_OK;
}

lt_err lt_sites_forget(const lt_sites *s, int64_t before) {
    char **names = NULL, path[LT_PATH_BYTES];
    size_t n = 0;
    lt_err err = LT_OK;
    LT_TRY(lt_file_list(&names, &n, s->o.folder));
    for (size_t i = 0; i < n; i++) {
        const int64_t step = step_of(names[i]);
        if (step >= 0 && step < before) {
            LT_TRY_DONE(step_path(path, s, step));
            LT_TRY_DONE(lt_file_remove_tree(path));
        }
    }
done:
    lt_file_list_free(names, n);
    return err;
}

/* ---- Open and close ---- */

/* Fails with the first fact in which they differ. */
static lt_err compare_facts(const json_t *there, const json_t *own, const char *path) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)own, name, value) {
        const char *was = json_string_value(json_object_get(there, name));
        if (was == NULL || strcmp(was, json_string_value(value)) != 0) {
            LT_FAIL(LT_ERR_STATE,
                    "%s = %s, but sites that meet in %s have %s: all sites of a run have it in "
                    "common; another run meets in another folder (diloco.meet)",
                    name, json_string_value(value), path, was != NULL ? was : "none");
        }
    }
    return LT_OK;
}

static lt_err agree(const lt_sites *s, const json_t *facts) {
    char path[LT_PATH_BYTES], *text = json_dumps(facts, JSON_INDENT(1));
    json_t *there = NULL;
    bool first = false;
    lt_err err = LT_OK;
    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "facts of a run");
    }
    LT_TRY_DONE(lt_file_make_dirs(s->o.folder));
    LT_TRY_DONE(lt_path_join(path, s->o.folder, "run.json"));
    LT_TRY_DONE(write_first(s, path, text, &first));
    if (!first) {
        LT_TRY_DONE(lt_json_load(&there, path, JSON_BYTES_MAX));
        LT_TRY_DONE(compare_facts(there, facts, s->o.folder));
    }
done:
    json_decref(there);
    free(text);
    return err;
}

lt_err lt_sites_open(lt_sites *s, const lt_sites_options *o, const json_t *facts) {
    LT_ASSERT(o->n_sites >= 2 && o->n_sites <= LT_SITES_MAX);
    LT_ASSERT(o->site >= 0 && o->site < o->n_sites && o->part < o->n_parts);
    *s = (lt_sites){.o = *o};
    LT_TRY(o->leads ? agree(s, facts) : LT_OK);
    if (o->part < 0) {
        return LT_OK;
    }
    s->file = malloc(sizeof(header) + o->payload_bytes);
    if (s->file == NULL) {
        LT_FAIL(LT_ERR_OOM, "a file of %zu bytes", o->payload_bytes);
    }
    return LT_OK;
}

void lt_sites_close(lt_sites *s) {
    if (s->o.folder != NULL) {
        lt_sites_end(s);
    }
    free(s->file);
    *s = (lt_sites){0};
}
