/* answers_itself.c: a library between a tool and the driver, which has a function under the driver's name. */
int cuMemAlloc_v2(void *pointer, unsigned long size)
{
    (void)pointer, (void)size;
    return 999;
}
