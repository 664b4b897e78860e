/* align.h: the parts of `lateen align` in files of their own; verb_align.c lists them. argv[0] is
 * the part's name. */
#ifndef LT_CLI_ALIGN_H
#define LT_CLI_ALIGN_H

int lt_align_detect(int argc, char **argv);
int lt_align_logprobs(int argc, char **argv);
int lt_align_rewards(int argc, char **argv);
int lt_align_experiment(int argc, char **argv);

#endif
