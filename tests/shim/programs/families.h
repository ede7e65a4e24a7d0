#ifndef TEST_FAMILIES_H
#define TEST_FAMILIES_H

#include <stddef.h>

#define SENTINEL 0xdeadbeefULL
#define MANY 64
#define WORDS 9

typedef unsigned long long number;

/* A command's numbers (those not given are 0), and what follows them. */
struct words {
    number n[WORDS];
    char text[512];
};

/* The driver's function of a name, as dlsym finds it; ends the program if there is none. */
void *function(const char *name);

/* Calls it; an argument must have exactly the type that the function takes. */
#define CALL(name, ...) (((int (*)())function(#name))(__VA_ARGS__))

void array_command(const char *what, const struct words *w);
void vmm_command(const char *what, const struct words *w);
void external_command(const char *what, const struct words *w);
void bound_command(const char *what, const struct words *w);
void ipc_command(const char *what, const struct words *w);

#endif
