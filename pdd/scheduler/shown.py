"""Of many candidates, those that a record of the decision tells of. Compiled."""

import numpy as np
import numpy.typing as npt

from pdd.core.compiled import compiled


@compiled("int64(float64[:, ::1], int64, int64[::1], float32[:, ::1])")
def show(
    told: npt.NDArray[np.float64],
    chosen_at: int,
    shown: npt.NDArray[np.int64],
    columns: npt.NDArray[np.float32],
) -> int:
    """Fill ``shown``: positions of the best, the chosen one among them, and where there are fewer
    than that, of some that were dropped; and ``columns``: what is ``told`` of these.

    ``told``: as in ``Choice``, of more candidates than ``shown`` has places. Returns how many of
    those shown were not dropped. Of equals the first are shown.
    """
    sums, dropped_by = told[-2], told[-1]
    room, count = len(shown), 0
    for at in range(len(sums)):
        if dropped_by[at] >= 0 or (count == room and sums[at] <= sums[shown[room - 1]]):
            continue
        place = min(count, room - 1)
        while place > 0 and sums[at] > sums[shown[place - 1]]:
            shown[place] = shown[place - 1]
            place -= 1
        shown[place] = at
        count = min(count + 1, room)
    if count > 0 and chosen_at not in shown[:count]:
        shown[count - 1] = chosen_at
    best_count = count
    for at in range(len(sums)):
        if dropped_by[at] >= 0 and count < room:
            shown[count] = at
            count += 1
    for place in range(room):
        for row in range(len(told)):
            columns[row, place] = told[row, shown[place]]
    return best_count
