/* job.c: see job.h. Words of the user are quoted in two ways: with double quotes in lines of
 * #SBATCH, which sbatch reads, and with single quotes in the commands for bash. */
#include "platform/cluster/job.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* The part that all jobs share. */
extern const char lt_job_body[];
__asm__(".section .rodata\n"
        ".global lt_job_body\n"
        "lt_job_body:\n"
        ".incbin \"src/platform/cluster/job.sh\"\n"
        ".byte 0\n"
        ".previous\n");

/* For each lt_job_container: words of srun before the image, and the words before the program,
 * before and after the image. */
static const struct {
    const char *step, *step_more, *before;
} containers[] = {
    [LT_JOB_PYXIS] = {"--container-image=",
                      "--container-mounts=\"$SLURM_SUBMIT_DIR:$SLURM_SUBMIT_DIR\" "
                      "--container-workdir=\"$SLURM_SUBMIT_DIR\"",
                      NULL},
    [LT_JOB_ENVIRONMENT] = {"--environment=", "", NULL},
    [LT_JOB_APPTAINER] =
        {NULL, "", "apptainer exec --nv --bind \"$SLURM_SUBMIT_DIR\" --pwd \"$SLURM_SUBMIT_DIR\""},
};

/* Write a word in single quotes, between which a shell changes nothing. */
static void write_quoted(FILE *to, const char *text) {
    fputc('\'', to);
    for (const char *p = text; *p != '\0'; p++) {
        fputs(*p == '\'' ? "'\\''" : (char[]){*p, '\0'}, to);
    }
    fputc('\'', to);
}

/* A line of #SBATCH; sbatch removes double quotes, and a backslash before a character. */
static void write_option(FILE *to, const char *option, const char *value) {
    if (value[0] == '\0') {
        return;
    }
    fprintf(to, "#SBATCH --%s=\"", option);
    for (const char *p = value; *p != '\0'; p++) {
        fputs(*p == '"' || *p == '\\' ? "\\" : "", to);
        fputc(*p, to);
    }
    fputs("\"\n", to);
}

static lt_err check_line(const char *option, const char *text) {
    for (const char *p = text; *p != '\0'; p++) {
        if (iscntrl((unsigned char)*p)) {
            LT_FAIL(LT_ERR_ARG, "%s '%s': character %d of it is a control character", option, text,
                    (int)(p - text) + 1);
        }
    }
    return LT_OK;
}

/* Check that it is a name that Slurm accepts for an account, a QOS, a partition or a
 * reservation. */
static lt_err check_name(const char *option, const char *text) {
    const size_t good = strspn(
        text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.,");
    if (text[good] != '\0' || text[0] == '-') {
        LT_FAIL(LT_ERR_ARG, "%s '%s': '%c' is not allowed there in a name of Slurm", option, text,
                text[0] == '-' ? '-' : text[good]);
    }
    return LT_OK;
}

/* Parse MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS or DAYS-HOURS[:MINUTES[:SECONDS]].
 * Returns seconds, or -1. / */
static int64_t seconds_of(const char *text) {
    static const int64_t unit[] = {86400, 3600, 60, 1};
    int64_t n[4] = {0}, seconds = 0;
    const char *dash = strchr(text, '-'), *p = dash != NULL ? dash + 1 : text;
    int fields = 0, first;
    char *end;
    if (dash != NULL) {
        n[0] = strtol(text, &end, 10);
        if (end != dash || dash == text) {
            return -1;
        }
    }
    for (const char *c = p; *c != '\0'; c++) {
        fields += *c == ':';
    }
    if (fields > 2) {
        return -1;
    }
    first = dash != NULL || fields == 2 ? 1 : 2;
    for (int i = first; i <= first + fields; i++) {
        if (!isdigit((unsigned char)*p) || i > 3) {
            return -1;
        }
        n[i] = strtol(p, &end, 10);
        p = end + (*end == ':');
    }
    for (int i = 0; i < 4; i++) {
        seconds += n[i] * unit[i];
    }
    return *p == '\0' ? seconds : -1;
}

static lt_err check_time(const lt_job *j) {
    const int64_t seconds = j->time[0] != '\0' ? seconds_of(j->time) : INT64_MAX;
    if (seconds <= 0) {
        LT_FAIL(LT_ERR_ARG,
                "--time '%s' is not a time that Slurm reads: MINUTES, HOURS:MINUTES:SECONDS or "
                "DAYS-HOURS:MINUTES:SECONDS",
                j->time);
    }
    if (seconds <= j->lead_s) {
        LT_FAIL(LT_ERR_ARG,
                "--time %s is %lld s, and the ranks are asked to save %lld s (--lead) before its "
                "end",
                j->time, (long long)seconds, (long long)j->lead_s);
    }
    return LT_OK;
}

static lt_err check(const lt_job *j) {
    const struct {
        const char *option, *text;
        lt_err (*check)(const char *option, const char *text);
    } texts[] = {{"--name", j->name, check_line},
                 {"--tenant", j->account, check_name},
                 {"--qos", j->qos, check_name},
                 {"--partition", j->partition, check_name},
                 {"--reservation", j->reservation, check_name},
                 {"--mpi", j->mpi, check_name},
                 {"--log", j->log, check_line}};
    LT_ASSERT(j->n_sizes > 0 && j->rest > 0 && j->node_gpus > 0);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        LT_TRY(texts[i].check(texts[i].option, texts[i].text));
    }
    return check_time(j);
}

static void write_options(FILE *to, const lt_job *j) {
    const int64_t most = j->sizes[0] + j->spares, least = j->sizes[j->n_sizes - 1] + j->spares;
    fputs("#!/bin/bash\n", to);
    write_option(to, "job-name", j->name);
    write_option(to, "account", j->account);
    write_option(to, "qos", j->qos);
    write_option(to, "partition", j->partition);
    write_option(to, "reservation", j->reservation);
    write_option(to, "time", j->time);
    write_option(to, "output", j->log);
    if (j->metrics_port > 0) {
        fprintf(to, "#SBATCH --comment=lateen-metrics=%lld\n", (long long)j->metrics_port);
    }
    fprintf(to, "#SBATCH --nodes=%lld", (long long)least);
    fprintf(to, most > least ? "-%lld\n" : "\n", (long long)most);
    /* With a number of tasks, sbatch would take the fewest nodes on which they fit. */
    fprintf(to, "#SBATCH --mincpus=%lld\n", (long long)(j->node_gpus * j->cpus));
    if (j->asks_gpus) {
        fprintf(to, "#SBATCH --gpus-per-node=%lld\n", (long long)j->node_gpus);
    }
    fprintf(to,
            "#SBATCH --signal=USR2@%lld\n#SBATCH --requeue\n#SBATCH --open-mode=append\n"
            "%sset -u\n\n",
            (long long)j->lead_s, j->spares > 0 ? "#SBATCH --no-kill\n" : "");
}

static void write_array(FILE *to, const char *name, const char *const *words) {
    fprintf(to, "%s=(", name);
    for (size_t i = 0; words[i] != NULL; i++) {
        fputs(i > 0 ? " " : "", to);
        write_quoted(to, words[i]);
    }
    fputs(")\n", to);
}

static void write_container(FILE *to, const lt_job *j) {
    const bool any = j->container[0] != '\0';
    fputs("in_step=(", to);
    if (any && containers[j->by].step != NULL) {
        fputs(containers[j->by].step, to);
        write_quoted(to, j->container);
        fprintf(to, " %s", containers[j->by].step_more);
    }
    fputs(")\nin_image=(", to);
    if (any && containers[j->by].before != NULL) {
        fprintf(to, "%s ", containers[j->by].before);
        write_quoted(to, j->container);
    }
    fputs(")\n", to);
}

static void write_values(FILE *to, const lt_job *j) {
    const struct {
        const char *name;
        const char *text;
    } texts[] = {{"lateen", j->program}, {"run", j->out}, {"axes", j->axes}, {"mpi", j->mpi}};
    const struct {
        const char *name;
        int64_t n;
    } numbers[] = {{"node_gpus", j->node_gpus}, {"rest", j->rest},     {"spares", j->spares},
                   {"cpus", j->cpus},           {"grow_s", j->grow_s}, {"retries", j->retries},
                   {"check", j->checks}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        fprintf(to, "%s=", texts[i].name);
        write_quoted(to, texts[i].text);
        fputc('\n', to);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        fprintf(to, "%s=%lld\n", numbers[i].name, (long long)numbers[i].n);
    }
    fputs("sizes='", to); /* Numbers of nodes, largest first. */
    for (size_t i = 0; i < j->n_sizes; i++) {
        fprintf(to, "%s%lld", i > 0 ? " " : "", (long long)j->sizes[i]);
    }
    fputs("'\n", to);
    write_array(to, "train", j->words);
    write_container(to, j);
}

lt_err lt_job_script(char **out, const lt_job *j) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *to;
    LT_TRY(check(j));
    to = open_memstream(&text, &bytes);
    if (to == NULL) {
        LT_FAIL(LT_ERR_OOM, "batch script");
    }
    write_options(to, j);
    write_values(to, j);
    fputs(lt_job_body, to);
    if (fclose(to) != 0) {
        free(text);
        LT_FAIL(LT_ERR_OOM, "batch script");
    }
    *out = text;
    return LT_OK;
}
