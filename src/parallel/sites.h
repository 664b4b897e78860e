/* sites.h: the folder through which sites that train apart exchange the files of their rounds
 * (DiLoCo, outer.h): on a shared file system, or one that is mounted over the link between them. A
 * site is a run of its own; it needs no connection to the others and knows only their files.
 *
 *   MEET/run.json               what all sites must agree on, written by the first of them
 *   MEET/step-000000100/        the round that begins after inner step 100
 *       site-0.part-0 ...       what site 0 brings: its deltas, encoded; a file for each part of
 *                               the model that a rank of it keeps
 *       members                 {"step": 100, "sites": [0, 1]}: which sites take part in the round
 *       outer.part-0 ...        sometimes: outer parameters and momentum after this round, for
 *                               sites that come later
 *
 * A ROUND
 *     each rank   write its file ── wait for `members` ── map and check the members' files
 *     leading     when every site's files are there, or deadline_s after its own were, it writes
 *                 `members` with the sites that are there. The first to do so decides for all.
 *     A thread does this while the next inner steps run. A file is written under another name and
 *     renamed, `members` is a hard link to a complete file: both are there whole or not at all.
 *     Several rounds may be in progress, each in an lt_sites of its own. They are decided in the
 *     order in which they began, so no decided round follows an undecided one.
 *
 * ABSENCE  A site that is not among the members of a round has no part in it. When it comes, it
 *     takes the outer parameters of the newest `outer` files and applies the later rounds to them.
 * RESTART  Files of a site are never replaced. A site that is killed and goes on from an older
 *     checkpoint computes its deltas again, finds its files, and takes part in the same rounds with
 *     the same bits.
 * DAMAGE   A file holds a hash of its content, and one of the outer parameters from which its
 *     deltas begin. If members of a round began from different outer parameters, the run ends. */
#ifndef LT_PARALLEL_SITES_H
#define LT_PARALLEL_SITES_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/file.h"
#include "parallel/outer.h"

#define LT_SITES_MAX 64

typedef struct {
    const char *folder; /* Outlives the sites. */
    int n_sites, site;
    /* part -1: another rank writes and reads the data that this rank holds, too. */
    int n_parts, part;
    bool leads; /* This rank decides for its site. */
    double deadline_s;
    lt_outer_bits bits;
    int64_t n_elements;
    size_t payload_bytes; /* Largest size of this site's own deltas. */
} lt_sites_options;

typedef struct {
    int64_t step;
    int fragment;         /* Which part of each model is sent, counted from 1; 0: all of it. */
    size_t payload_bytes; /* Size of this rank's part, at most that of the options. */
    int64_t after;        /* Step of a round that must be decided before this one; 0: none. */
} lt_sites_round;

typedef struct {
    lt_sites_options o;
    lt_sites_round round; /* The round in progress. */
    bool has_thread;
    pthread_t thread;
    uint8_t *file; /* This rank's file: its header, then the payload. */
    uint64_t base; /* Hash of the outer parameters that its deltas begin from; 0: not known. */
    bool member[LT_SITES_MAX];
    lt_file_map maps[LT_SITES_MAX]; /* The members' files, once they have been read. */
    atomic_bool posted, done, cancelled;
    lt_err err;
    lt_failure failure;
} lt_sites;

/* facts: names and values that must be the same at all sites; STATE names the first that differs.
 * Makes the folder. close accepts zeroed sites. */
LT_MUST_USE lt_err lt_sites_open(lt_sites *s, const lt_sites_options *o, const json_t *facts);
void lt_sites_close(lt_sites *s);
/* The buffer for this rank's encoded deltas (payload_bytes), while no round is in progress. */
void *lt_sites_payload(lt_sites *s);

/* Begin a round: post the payload, whose deltas begin from outer parameters with hash `base`,
 * unless there is already a file of this step. A thread waits for the other sites' files. */
LT_MUST_USE lt_err lt_sites_begin(lt_sites *s, lt_sites_round round, uint64_t base);
bool lt_sites_has_posted(const lt_sites *s, int64_t step); /* Whether this rank's file exists. */
/* *done: whether the thread has ended. Its failure is returned. */
LT_MUST_USE lt_err lt_sites_poll(lt_sites *s, bool *done);
LT_MUST_USE lt_err lt_sites_wait_posted(lt_sites *s);
/* Deltas of a member of the round that was read. */
const void *lt_sites_deltas(const lt_sites *s, int site);
int lt_sites_members(const lt_sites *s); /* Number of members of that round. */
/* Bytes that this rank has read of the other members' files. */
size_t lt_sites_received(const lt_sites *s);
/* Stop waiting, and forget the round. */
void lt_sites_end(lt_sites *s);

/* Rounds after step `after` that were decided, oldest first; free(). *without: the first of them
 * without this site; -1: none. */
LT_MUST_USE lt_err lt_sites_decided(const lt_sites *s, int64_t after, int64_t **steps, size_t *n,
                                    int64_t *without);
/* Read the files of a decided round at once. fragment: the part of the model in its files. */
LT_MUST_USE lt_err lt_sites_fragment(lt_sites *s, int64_t step, int *fragment);
LT_MUST_USE lt_err lt_sites_read(lt_sites *s, lt_sites_round round);

/* Outer parameters and momentum after a round, (2, n_elements) of this part. newest: the newest
 * step after `after` for which all parts exist; -1: none. Close what map has mapped. */
LT_MUST_USE lt_err lt_sites_keep_outer(const lt_sites *s, int64_t step, const float *both);
LT_MUST_USE lt_err lt_sites_newest_outer(const lt_sites *s, int64_t after, int64_t *step);
LT_MUST_USE lt_err lt_sites_map_outer(const lt_sites *s, int64_t step, lt_file_map *map,
                                      const float **both);
/* Remove the rounds before a step. */
LT_MUST_USE lt_err lt_sites_forget(const lt_sites *s, int64_t before);

#endif
