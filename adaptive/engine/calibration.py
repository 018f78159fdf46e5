"""Calibrated survival of draft tokens, per tenant and arm.

A logistic fit on the confidence (Platt) is all a well-trained head needs; it starts from turbo's global fit
and follows each tenant's own verify steps. An adapter's fit starts as its tenant's fit for turbo, which
carries over; one tenant's never starts from another's, which does not (and would tell the one of the other).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec

from adaptive.engine.logistic import Logistic
from adaptive.engine.reliability import Reliability
from adaptive.engine.survival import Judge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from adaptive.engine.survival import Row

_CARRIES_OVER: Final = {Judge.ADAPTER: Judge.TURBO, Judge.AHEAD_ADAPTER: Judge.AHEAD_TURBO}


class Prior(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One global fit: weights, and the information of `worth` observations as precision."""

    weights: list[float]
    precision: list[list[float]]


class Priors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The global fits that every tenant starts from, made by the offline tool on development data."""

    fits: dict[Judge, Prior]

    @classmethod
    def load(cls, path: Path) -> Priors:
        """Read a JSON file.

        Raises:
            FileNotFoundError: there is none.
            msgspec.ValidationError: it has another shape; the error names the field.
        """
        return msgspec.json.decode(path.read_bytes(), type=cls)


class Calibration:
    """Fits and their errors for a bounded number of tenants.

    Args:
        priors: Where every tenant starts.
        tenants: Most tenants kept; the one not used for longest starts anew when it returns.
    """

    def __init__(self, priors: Priors, tenants: int = 1024) -> None:
        self._priors: Final = priors
        self._most: Final = tenants
        self._fits: OrderedDict[str, dict[Judge, Logistic]] = OrderedDict()
        self._errors: dict[str, dict[Judge, Reliability]] = {}

    def survival(self, tenant: str, judge: Judge, row: Row) -> float:
        """P(the token is accepted | all before it were)."""
        return self._fit(tenant, judge).probability(row)

    def observe(
        self, tenant: str, rows: Sequence[tuple[Judge, Row]], accepted: int, *, rejected: bool
    ) -> None:
        """Learn from one chain of draft tokens.

        Args:
            tenant: Whose request it was.
            rows: Fit and features per draft token, as they were when it was judged.
            accepted: Tokens of the chain that were accepted.
            rejected: Whether the token after those was rejected; False: the chain, or what is known of it,
                ended there. Tokens behind the first rejected one tell nothing and are left out.
        """
        for index, (judge, row) in enumerate(rows[: accepted + rejected]):
            fit = self._fit(tenant, judge)
            outcome = index < accepted
            errors = self._errors[tenant]
            error = errors.get(judge)
            if error is None:
                error = errors[judge] = Reliability()
            error.add(fit.probability(row), outcome)
            fit.observe(row, outcome)

    def errors(self) -> Mapping[str, Mapping[Judge, float]]:
        """Expected calibration error per tenant and fit, of predictions made before their outcome."""
        return {
            tenant: {judge: error.error for judge, error in errors.items()}
            for tenant, errors in self._errors.items()
        }

    def error(self, tenant: str) -> float:
        """Expected calibration error of a tenant over all fits, weighted by outcomes."""
        errors = list(self._errors.get(tenant, {}).values())
        outcomes = sum(error.outcomes for error in errors)
        return sum(error.error * error.outcomes for error in errors) / outcomes if outcomes else 0.0

    def forget(self, tenant: str) -> None:
        """Drop everything about a tenant."""
        self._fits.pop(tenant, None)
        self._errors.pop(tenant, None)

    def state(self) -> dict[str, dict[str, dict[str, object]]]:
        """Every fit as plain numbers: tenant, fit, `Logistic.state`."""
        return {
            tenant: {str(judge): fit.state() for judge, fit in fits.items()}
            for tenant, fits in self._fits.items()
        }

    def restore(self, state: Mapping[str, Mapping[str, dict[str, object]]]) -> None:
        """Take over what `state` gave.

        Raises:
            ValueError: a fit is unknown or of another shape; nothing of its tenant is kept.
        """
        for tenant, fits in state.items():
            try:
                for judge, numbers in fits.items():
                    self._fit(tenant, Judge(judge)).restore(numbers)
            except ValueError:
                self.forget(tenant)
                raise

    def _fit(self, tenant: str, judge: Judge) -> Logistic:
        fits = self._fits.get(tenant)
        if fits is None:
            while len(self._fits) >= self._most:
                oldest, _ = self._fits.popitem(last=False)
                del self._errors[oldest]
            fits = self._fits[tenant] = {}
            self._errors[tenant] = {}
        self._fits.move_to_end(tenant)
        fit = fits.get(judge)
        if fit is None:
            prior = self._priors.fits[judge]
            fit = fits[judge] = Logistic(prior.weights, prior.precision)
            carried = fits.get(_CARRIES_OVER.get(judge, judge))
            if carried is not None and carried is not fit:
                fit.restore(carried.state())
        return fit
