/* cluster_verbs.h: the sub-verbs of `lateen cluster`. */
#ifndef LT_CLI_CLUSTER_VERBS_H
#define LT_CLI_CLUSTER_VERBS_H

int lt_cluster_policy(int argc, char **argv);

#endif
