"""Whether two sets of measurements differ by more than noise: functions of numbers."""

import dataclasses
import math

# With how many chances in all a comparison of two programs that are the same may report any change.
FALSE_ALARM = 0.01
# What differs by less is no change, however certain: 3% between two runs, 1.5% in turns within one.
LEAST_CHANGE, LEAST_CHANGE_IN_TURNS = 0.03, 0.015

TRIMMED = 0.2  # at either end
# Readings of one run are not independent: a neighbour who is busy for a minute disturbs many of them and none of the
# other run's. A difference that is smaller than this many standard deviations of single readings is never told apart
# from that, however many readings there are.
LEAST_DEVIATIONS = 1.5
# The fixed loops are not the program: of a drift that they show so much may be left after normalising.
DRIFT_LEFT = 0.5

SAME, SLOWER, FASTER, UNCLEAR = "no change", "slower", "faster", "unclear"


@dataclasses.dataclass
class Interval:
    """Where a mean lies, with a given confidence."""
    middle: float = 0.0
    half_width: float = 0.0

    @property
    def low(self):
        return self.middle - self.half_width

    @property
    def high(self):
        return self.middle + self.half_width

    def beyond(self, least):
        """Whether it lies wholly above `least` or wholly below -`least`."""
        return self.low > least or self.high < -least

    def of_ratio(self):
        """From logarithms to parts of the value."""
        low, middle, high = (math.expm1(min(x, 700.0)) for x in (self.low, self.middle, self.high))  # of 700: 1e304
        return Interval(middle, (high - low) / 2)


@dataclasses.dataclass
class Change:
    """A figure of two programs or runs. Changes are of its value, in parts of it: 0.1 is a tenth more."""
    name: str
    unit: str
    before: float  # trimmed means
    after: float
    change: Interval  # as measured
    normalised: Interval  # by what the fixed loops beside each reading did; as `change` without these
    drift: float = 0.0  # of these loops from one to the other
    verdict: str = SAME  # UNCLEAR: it differs, but so does the machine


# ---- Student's distribution ----

def beta_fraction(a, b, x):
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, 1000):
        for factor in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                       -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1 + factor * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + factor / c
            c = c if abs(c) > tiny else tiny
            result *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return result


def incomplete_beta(a, b, x, rest):
    """The regularised incomplete beta function at x = 1 - rest."""
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest))
    if x < (a + 1) / (a + b + 2):
        return front * beta_fraction(a, b, x) / a
    return 1 - front * beta_fraction(b, a, rest) / b


def student_t(degrees, probability):
    """The t of Student's distribution that is exceeded, upwards or downwards, with this probability."""
    n = min(max(degrees, 1.0), 1e6)

    def exceeded(t):
        whole = n + t * t
        return incomplete_beta(n / 2, 0.5, n / whole, t * t / whole)

    low, high = 0.0, 1.0
    while exceeded(high) > probability:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if exceeded(middle) > probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


# ---- Means ----

def mean(values):
    return math.fsum(values) / len(values)


def median(values):
    v = sorted(values)
    return (v[(len(v) - 1) // 2] + v[len(v) // 2]) / 2


def trimmed_mean(values):
    """Without its fifth at either end."""
    v = sorted(values)
    cut = int(TRIMMED * len(v))
    return mean(v[cut:len(v) - cut]) if v else 0.0


def standard_deviation(values):
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.sqrt(math.fsum((x - centre) ** 2 for x in values) / (len(values) - 1))


def mean_interval(values, probability):
    """Of the mean of `values`, none of them weighted, at least two."""
    n = len(values)
    return Interval(mean(values), student_t(n - 1, probability) * standard_deviation(values) / math.sqrt(n))


class Winsorized:
    """Sum of squares about the mean of what is left when the ends are replaced by their inner neighbours."""

    def __init__(self, values):
        v = sorted(values)
        cut = int(TRIMMED * len(v))
        self.kept = len(v) - 2 * cut
        self.mean = trimmed_mean(v)
        for i in range(cut):
            v[i], v[-1 - i] = v[cut], v[len(v) - 1 - cut]
        centre = mean(v)
        self.squares = math.fsum((x - centre) ** 2 for x in v)

    def variance(self):
        """Of the trimmed mean."""
        return self.squares / (self.kept * (self.kept - 1))


def trimmed_difference(a, b, probability):
    """Mean of b minus mean of a, each without its two fifths at the ends (Yuen's test, with Welch's degrees of
    freedom): a disturbed reading here and there does not count. At least four of each."""
    wa, wb = Winsorized(a), Winsorized(b)
    va, vb = wa.variance(), wb.variance()
    result = Interval(wb.mean - wa.mean, 0.0)
    if va + vb == 0:
        return result
    degrees = (va + vb) ** 2 / (va * va / (wa.kept - 1) + vb * vb / (wb.kept - 1))
    result.half_width = student_t(degrees, probability) * math.sqrt(va + vb)
    return result


# ---- Comparing ----

def calibration(compute, memory):
    """What the fixed loops did beside a reading, as one number; 0 where they did not run."""
    return 0.5 * (math.log(compute) + math.log(memory)) if compute > 0 and memory > 0 else 0.0


class Logs:
    """Logarithms of a figure's readings, and of what they would be if the loops had always taken as long."""

    def __init__(self, figure):
        self.raw = [math.log(x) for x in figure["values"]]
        self.loops = [calibration(c, m) for c, m in zip(figure["compute"], figure["memory"])]
        sign = -1 if figure["more_is_better"] else 1  # a rate falls with the loops' rates, a time rises
        self.normalised = [x + sign * c for x, c in zip(self.raw, self.loops)]


def widened(interval, a, b, drift):
    spread = LEAST_DEVIATIONS * math.sqrt(max(Winsorized(v).squares / (len(v) - 1) for v in (a, b)))
    return Interval(interval.middle, math.hypot(max(interval.half_width, spread), DRIFT_LEFT * drift))


def judged(changed, change, more_is_better):
    if not changed:
        return SAME
    return FASTER if (change > 0) == more_is_better else SLOWER


def each_of(figures):
    """Bonferroni's correction: so many figures, of which none may cry wolf."""
    return FALSE_ALARM / max(1, figures)


def compare_runs(before, after, figures):
    """The same figure of two runs, of so many that are compared at once."""
    a, b = Logs(before), Logs(after)
    drift = trimmed_mean(b.loops) - trimmed_mean(a.loops)
    raw = widened(trimmed_difference(a.raw, b.raw, each_of(figures)), a.raw, b.raw, 0)
    normalised = widened(trimmed_difference(a.normalised, b.normalised, each_of(figures)), a.normalised, b.normalised,
                         drift)
    raw_says, loops_say = raw.beyond(LEAST_CHANGE), normalised.beyond(LEAST_CHANGE)
    agree = raw_says and loops_say and (raw.middle > 0) == (normalised.middle > 0)
    verdict = judged(agree, raw.middle, before["more_is_better"])
    if not agree and (raw_says or loops_say):
        verdict = UNCLEAR
    return Change(before["name"], before["unit"], trimmed_mean(before["values"]), trimmed_mean(after["values"]),
                  raw.of_ratio(), normalised.of_ratio(), math.expm1(min(drift, 700.0)), verdict)


def compare_turns(name, unit, more_is_better, before, after, figures):
    """The same figure of two programs that were run in turns: of each pair of launches, what the second was to the
    first."""
    log = mean_interval([math.log(b / a) for a, b in zip(before, after)], each_of(figures))
    return Change(name, unit, trimmed_mean(before), trimmed_mean(after), log.of_ratio(), log.of_ratio(), 0.0,
                  judged(log.beyond(LEAST_CHANGE_IN_TURNS), log.middle, more_is_better))
