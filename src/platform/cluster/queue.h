/* queue.h: reads what Slurm's commands say about jobs that this program has submitted. The commands
 * are run by their callers (platform/command.h).
 *
 *   squeue   the jobs of this user, one per line; for some minutes (MinJobAge) also those that
 *            have ended
 *   sacct    a job that squeue no longer lists, if the cluster has accounting
 *   sbatch   the number of the new job, or the reason why there is none */
#ifndef LT_PLATFORM_CLUSTER_QUEUE_H
#define LT_PLATFORM_CLUSTER_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

/* What a state of Slurm means to a program that waits for the job. */
typedef enum {
    LT_QUEUE_UNKNOWN, /* A word that the table does not have. */
    LT_QUEUE_WAITS,   /* It waits for its first or next start, or was stopped. */
    LT_QUEUE_RUNS,
    LT_QUEUE_BETWEEN, /* It is ending; a later answer tells the result. */
    LT_QUEUE_DONE,    /* The script has ended with status 0. */
    LT_QUEUE_FAILED,  /* It failed, or exceeded a limit, and would do so again. */
    LT_QUEUE_CANCELLED,
    LT_QUEUE_PREEMPTED, /* It was preempted, and is not queued again automatically. */
    LT_QUEUE_LOST       /* Its node failed, and it is not queued again automatically. */
} lt_queue_state;

/* The meaning of a word such as "RUNNING" or "CANCELLED by 0". */
lt_queue_state lt_queue_state_of(const char *word);

typedef struct {
    int64_t id;
    lt_queue_state state;
    char word[48], name[64], reason[128]; /* Slurm's state; "": no reason. */
} lt_queue_job;

/* The command that lists all jobs of this user, and the one that lists the job `id`, whose text is
 * kept in `room`. Both print lines for lt_queue_next. */
extern const char *const lt_queue_list_words[];
typedef struct {
    const char *words[8];
    char job[40];
} lt_queue_account;
void lt_queue_account_words(lt_queue_account *a, int64_t id);

/* The next job of an answer; *at moves past it. False: there is none. Other lines, such as
 * warnings, are skipped. */
bool lt_queue_next(lt_queue_job *j, const char **at);

/* The job that sbatch --parsable has submitted; 0: none. */
int64_t lt_queue_submitted(const char *said);
/* Put the messages of Slurm's commands into one line, without the names of the commands. */
void lt_queue_message(char *out, size_t room, const char *said);
/* Whether the same command may succeed later. False: its options are wrong. */
bool lt_queue_may_pass_later(const char *said);

/* Further options of sbatch, as a user wrote them with blanks between. */
#define LT_QUEUE_MOST_WORDS 32
typedef struct {
    char text[1024];
    const char *words[LT_QUEUE_MOST_WORDS];
    size_t n;
    const char *time; /* The value of --time=TIME or -tTIME; "": there is none. */
} lt_queue_words;
/* ARG: a word is not an option, or is one that would make us lose track of the job, such as
 * --array or --output. `option` is the name of the option for messages. */
LT_MUST_USE lt_err lt_queue_words_read(lt_queue_words *w, const char *option, const char *text);

#endif
