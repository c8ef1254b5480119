import { duration } from "./format.js";

// How far a run is, in words.

export function progressText({ share, done, of, unit, left }) {
  const time = left === null || left === undefined ? "" : `, ${duration(left)} left`;
  return `${unit} ${done} of ${of}, ${Math.floor(100 * share)}%${time}`;
}
