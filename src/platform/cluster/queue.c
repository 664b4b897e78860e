/* queue.c: see queue.h. */
#include "platform/cluster/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* ---- States ---- */

/* The words of Slurm's job_state_string, and what they mean here. Flags such as REQUEUED are
 * printed in place of a state. */
static const struct {
    const char *word;
    lt_queue_state state;
} states[] = {
    {"PENDING", LT_QUEUE_WAITS},
    {"CONFIGURING", LT_QUEUE_WAITS}, /* Its nodes are being switched on. */
    {"POWER_UP_NODE", LT_QUEUE_WAITS},
    {"REQUEUED", LT_QUEUE_WAITS},
    {"REQUEUE_FED", LT_QUEUE_WAITS},
    {"REQUEUE_HOLD", LT_QUEUE_WAITS},
    {"RESV_DEL_HOLD", LT_QUEUE_WAITS},
    {"SPECIAL_EXIT", LT_QUEUE_WAITS}, /* Requeued and held. */
    {"SUSPENDED", LT_QUEUE_WAITS},
    {"STOPPED", LT_QUEUE_WAITS},
    {"RUNNING", LT_QUEUE_RUNS},
    {"RESIZING", LT_QUEUE_RUNS},
    {"SIGNALING", LT_QUEUE_BETWEEN},
    {"STAGE_OUT", LT_QUEUE_BETWEEN},
    {"COMPLETING", LT_QUEUE_BETWEEN},
    {"COMPLETED", LT_QUEUE_DONE},
    {"FAILED", LT_QUEUE_FAILED},
    {"TIMEOUT", LT_QUEUE_FAILED},
    {"DEADLINE", LT_QUEUE_FAILED},
    {"OUT_OF_MEMORY", LT_QUEUE_FAILED},
    {"CANCELLED", LT_QUEUE_CANCELLED},
    {"PREEMPTED", LT_QUEUE_PREEMPTED},
    {"NODE_FAIL", LT_QUEUE_LOST},
    {"BOOT_FAIL", LT_QUEUE_LOST},
};

lt_queue_state lt_queue_state_of(const char *word) {
    /* As in "CANCELLED by 0"; a truncated name ends in +. */
    const size_t n = strcspn(word, " +");
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        if (strlen(states[i].word) == n && memcmp(states[i].word, word, n) == 0) {
            return states[i].state;
        }
    }
    return LT_QUEUE_UNKNOWN;
}

/* ---- Answers ---- */

const char *const lt_queue_list_words[] = {"squeue",       "--noheader",           "--me", "--all",
                                           "--states=all", "--format=%A|%T|%j|%r", NULL};

void lt_queue_account_words(lt_queue_account *a, int64_t id) {
    const char *const words[] = {"sacct",
                                 "--noheader",
                                 "--parsable2",
                                 "--allocations",
                                 "--format=JobIDRaw,State,JobName,Reason",
                                 a->job,
                                 NULL};
    (void)snprintf(a->job, sizeof a->job, "--jobs=%lld", (long long)id);
    memcpy(a->words, words, sizeof words);
}

/* Copy a field, up to '|' or to the end of the line; a field that is too long is cut. */
static const char *field(char *out, size_t room, const char *at, const char *end, bool last) {
    const char *bar = last ? NULL : memchr(at, '|', (size_t)(end - at));
    const char *stop = bar != NULL ? bar : end;
    (void)snprintf(out, room, "%.*s", (int)(stop - at), at);
    return bar != NULL ? bar + 1 : last ? end : NULL;
}

static bool read_line(lt_queue_job *j, const char *line, const char *end) {
    char *after;
    const char *at;
    j->id = strtoll(line, &after, 10);
    if (after == line || *after != '|' || j->id <= 0) {
        return false;
    }
    at = field(j->word, sizeof j->word, after + 1, end, false);
    at = at != NULL ? field(j->name, sizeof j->name, at, end, false) : NULL;
    if (at == NULL) {
        return false;
    }
    (void)field(j->reason, sizeof j->reason, at, end, true);
    if (strcmp(j->reason, "None") == 0) {
        j->reason[0] = '\0';
    }
    j->state = lt_queue_state_of(j->word);
    return true;
}

bool lt_queue_next(lt_queue_job *j, const char **at) {
    while (**at != '\0') {
        const char *line = *at, *end = line + strcspn(line, "\n");
        *at = *end == '\n' ? end + 1 : end;
        if (read_line(j, line, end)) {
            return true;
        }
    }
    return false;
}

int64_t lt_queue_submitted(const char *said) {
    for (const char *line = said; *line != '\0'; line += strspn(line, "\n")) {
        char *end;
        const int64_t id = strtoll(line, &end, 10);
        if (end != line && id > 0 && (*end == '\n' || *end == '\0' || *end == ';')) {
            return id;
        }
        line += strcspn(line, "\n");
    }
    return 0;
}

void lt_queue_message(char *out, size_t room, const char *said) {
    static const char *const prefixes[] = {
        "sbatch: ", "squeue: ", "scancel: ", "sacct: ", "error: "};
    size_t used = 0;
    out[0] = '\0';
    for (const char *line = said; *line != '\0'; line += strspn(line, "\n")) {
        const char *end = line + strcspn(line, "\n");
        for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
            const size_t n = strlen(prefixes[i]);
            line += strncmp(line, prefixes[i], n) == 0 ? n : 0;
        }
        if (end > line && used < room) {
            const int n = snprintf(out + used, room - used, "%s%.*s", used > 0 ? "; " : "",
                                   (int)(end - line), line);
            used += n > 0 ? (size_t)n : 0;
        }
        line = end;
    }
}

bool lt_queue_may_pass_later(const char *said) {
    /* Nodes that are all down or drained look to sbatch --test-only like nodes that do not exist.
     */
    static const char *const passing[] = {"Unable to contact slurm controller",
                                          "Requested node configuration is not available",
                                          "Required node not available",
                                          "Socket timed out",
                                          "try again",
                                          "submit limit"};
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++) {
        if (strstr(said, passing[i]) != NULL) {
            return true;
        }
    }
    return false;
}

/* ---- Options of sbatch ---- */

/* Options that this program itself sets. sbatch also accepts any unique beginning of a name. */
static const struct {
    const char *name;
    char letter;
} ours[] = {{"array", 'a'},     {"chdir", 'D'},    {"clusters", 'M'},   {"error", 'e'},
            {"help", 'h'},      {"input", 'i'},    {"job-name", 'J'},   {"no-requeue", '\0'},
            {"nodes", 'N'},     {"ntasks", 'n'},   {"open-mode", '\0'}, {"output", 'o'},
            {"parsable", '\0'}, {"requeue", '\0'}, {"signal", '\0'},    {"test-only", '\0'},
            {"usage", '\0'},    {"version", 'V'},  {"wait", 'W'},       {"wrap", '\0'}};

/* Letters after which another one may follow, because they take no value. */
#define FLAGS "HkKOQsv"

static bool names_ours(const char *word, const char *name, char letter) {
    if (word[1] == '-') {
        const size_t n = strcspn(word + 2, "=");
        return n > 0 && strncmp(name, word + 2, n) == 0;
    }
    for (const char *p = word + 1; *p != '\0'; p++) {
        if (*p == letter) {
            return true;
        }
        if (strchr(FLAGS, *p) == NULL) {
            return false;
        }
    }
    return false;
}

static lt_err check_word(const char *word, const char *option) {
    if (word[0] != '-' || word[1] == '\0' || strcmp(word, "--") == 0) {
        LT_FAIL(LT_ERR_ARG,
                "%s: '%s' is not an option of sbatch: they are written --NAME=VALUE, with blanks "
                "between them",
                option, word);
    }
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        if (names_ours(word, ours[i].name, ours[i].letter)) {
            LT_FAIL(LT_ERR_ARG, "%s: '%s': --%s cannot be given: it is set by lateen", option, word,
                    ours[i].name);
        }
    }
    return LT_OK;
}

lt_err lt_queue_words_read(lt_queue_words *w, const char *option, const char *text) {
    *w = (lt_queue_words){.time = ""};
    if (snprintf(w->text, sizeof w->text, "%s", text) >= (int)sizeof w->text) {
        LT_FAIL(LT_ERR_ARG, "%s is longer than %zu characters", option, sizeof w->text - 1);
    }
    for (char *at = w->text, *word; (word = strtok_r(at, " \t\n", &at)) != NULL;) {
        if (w->n == LT_QUEUE_MOST_WORDS) {
            LT_FAIL(LT_ERR_ARG, "%s has more than %d words", option, LT_QUEUE_MOST_WORDS);
        }
        LT_TRY(check_word(word, option));
        if (strncmp(word, "--time=", 7) == 0) {
            w->time = word + 7;
        } else if (strncmp(word, "-t", 2) == 0) {
            w->time = word + 2;
        }
        w->words[w->n++] = word;
    }
    return LT_OK;
}
