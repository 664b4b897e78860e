/* data_check.h: `lateen data check`. */
#ifndef LT_CLI_DATA_CHECK_H
#define LT_CLI_DATA_CHECK_H

/* As a verb's function; argv[0] is "check". */
int lt_data_check(int argc, char **argv);

#endif
