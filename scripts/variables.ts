/*
 * What a script is told: the variables of make's command line, which make passes on as environment.
 */

/** Only the cases of a scenario whose name has this text. */
export const NAMED = process.env['NAMED'] ?? ''

/** A whole number. Ends the process for anything else. */
export function wholeNumber(name: string, fallback: number, min = 1, max = 2 ** 31): number {
  const value = Number(process.env[name] || fallback)
  if (Number.isSafeInteger(value) && value >= min && value <= max) return value
  return refuse(`${name} must be a whole number from ${min} to ${max}`)
}

/** Ends the process with the status of a wrong command line. */
export function refuse(problem: string): never {
  console.error(problem)
  process.exit(2)
}
