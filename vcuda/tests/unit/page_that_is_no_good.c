/* page_that_is_no_good.c: prints whether the container has its slot on a page that was made good after it was read, under the same
 * generation and under the next one.
 *
 *     page_that_is_no_good PAGE      of slot 0; the first byte of its UUID is wrong
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include "config.h"
#include "time/schedule_page.h"

static struct vcuda_config config_of_one = {.device_count = 1, .devices = {{.slot_key = 1000, .core_percent = 50}}};

static int has_its_slot(void)
{
    struct vcuda_slot slot;
    return schedule_slot(0, &slot);
}

int main(int count, char **arguments)
{
    int file = count == 2 ? open(arguments[1], O_RDWR) : -1;
    struct vcuda_schedule *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED)
        return 2;
    snprintf(config_of_one.devices[0].schedule_path, VCUDA_PATH_SIZE, "%s", arguments[1]);
    schedule_open(&config_of_one);
    if (has_its_slot())
        return 3;
    page->uuid[0] = 'G';
    int same = has_its_slot();
    __atomic_store_n(&page->generation, page->generation + 2, __ATOMIC_RELEASE);
    printf("%d %d\n", same, has_its_slot());
    return 0;
}
