#ifndef TEST_CLIENT_POOL_H
#define TEST_CLIENT_POOL_H

/* The driver's function by its name; its parameters' types follow the name. */
#define CALL(name, ...) ((int (*)(__VA_ARGS__))(uintptr_t)cuda(#name))

enum { STREAM, POOL, GRAPH, EXEC, NAMED };
enum { MANY = 1100 };

extern void *named[NAMED][MANY];

void *cuda(const char *name);
void *pool_of(unsigned long number);

/* Do commands whose names begin with pool- and graph-. */
void pool_command(const char *what, unsigned long a, unsigned long b, unsigned c, unsigned e);
void graph_command(const char *what, unsigned long a, unsigned long b, unsigned c, unsigned e);

#endif
