//! What a bucket's delay is in theory, with Poisson arrivals: the unfinished work of an M/D/1 queue.
//!
//! With time in units of 1/r, P(U ≤ x) = (1 − ρ) Σ [ρ(i − x)]ⁱ/i! · e^(−ρ(i − x)) over i = 0…⌊x⌋
//! (Crommelin), and a message waits for U − (b − 1) if that is positive. So the mean delay is the
//! integral of P(U > x) from b − 1, divided by r. The paper's Eq. (1) is that for b = 1 and an upper
//! bound above.
//!
//! The sum has terms of both signs, and cancels badly for large x: it is used up to x = 12, and beyond
//! that the tail is exponential, as it is in truth but for less than one part in 10⁹.

/// Where the exponential tail takes over.
const FAR: f64 = 12.0;

/// P(U > x) for utilization `rho`.
pub fn exceeds(rho: f64, x: f64) -> f64 {
    if x < 0.0 {
        return 1.0;
    }
    if x > FAR {
        return exceeds(rho, FAR) * (-decay(rho) * (x - FAR)).exp();
    }
    let (mut sum, mut factorial) = (0.0, 1.0);
    for i in 0..=x.floor() as i32 {
        if i > 0 {
            factorial *= f64::from(i);
        }
        let y = rho * (f64::from(i) - x);
        sum += y.powi(i) / factorial * (-y).exp();
    }
    (1.0 - (1.0 - rho) * sum).max(0.0)
}

/// The rate at which the tail falls: the root θ > 0 of ρ(e^θ − 1) = θ.
fn decay(rho: f64) -> f64 {
    let (mut low, mut high) = (1e-9, 50.0);
    for _ in 0..200 {
        let middle: f64 = (low + high) / 2.0;
        if rho * middle.exp_m1() < middle { low = middle } else { high = middle }
    }
    low
}

/// The mean delay, in seconds, of Poisson arrivals at `arrivals` per second in a bucket (`rate`, `burst`).
pub fn mean_delay(arrivals: f64, rate: f64, burst: u64) -> f64 {
    let rho = arrivals / rate;
    let from = burst as f64 - 1.0;
    // Simpson's rule up to the exponential tail, whose integral is known.
    let tail = exceeds(rho, from.max(FAR)) / decay(rho);
    let steps = 2_000;
    let width = (FAR - from).max(0.0) / f64::from(steps);
    let mut sum = 0.0;
    for step in 0..steps {
        let x = from + f64::from(step) * width;
        sum += exceeds(rho, x) + 4.0 * exceeds(rho, x + width / 2.0) + exceeds(rho, x + width);
    }
    (sum * width / 6.0 + tail) / rate
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed from Crommelin's distribution with 70 digits.
    #[test]
    fn means_and_excesses_of_crommelins_distribution() {
        // Utilization, burst, P(U > b − 1), the paper's Eq. (1), the exact mean.
        for (rho, burst, waits, first, exact) in [
            (0.5, 1, 0.5, 0.5, 0.5),
            (0.5, 2, 0.175639, 0.175639, 0.148721),
            (0.5, 5, 0.004342, 0.004342, 0.003455),
            (0.8, 1, 0.8, 2.0, 2.0),
            (0.8, 2, 0.554892, 1.387230, 1.306385),
            (0.8, 5, 0.154625, 0.386562, 0.358878),
            (0.8, 10, 0.017935, 0.044838, 0.041628),
            (0.9, 1, 0.9, 4.5, 4.5),
            (0.9, 5, 0.407545, 2.037727, 1.967401),
            (0.9, 10, 0.144663, 0.723317, 0.698361),
        ] {
            let above = exceeds(rho, burst as f64 - 1.0);
            assert!((above - waits).abs() < 2e-6, "{rho} {burst}");
            assert!((above / (2.0 * (1.0 - rho)) - first).abs() < 1e-5, "{rho} {burst}");
            let mean = mean_delay(rho, 1.0, burst);
            assert!((mean / exact - 1.0).abs() < 1e-3, "{rho} {burst}: {mean}");
        }
    }

    /// Likewise: splitting (1, 10) into k equal parts.
    #[test]
    fn a_split_costs_more_than_its_number() {
        for (rho, k, exact) in [(0.8, 2, 0.7178), (0.8, 5, 6.53), (0.9, 2, 3.93), (0.9, 5, 18.3)] {
            let parts = f64::from(k);
            let mean = mean_delay(rho / parts, 1.0 / parts, 10 / u64::from(k as u32));
            assert!((mean / exact - 1.0).abs() < 2e-3, "{rho} {k}: {mean}");
        }
    }
}
