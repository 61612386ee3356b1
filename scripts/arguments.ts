/** A whole number of the command line, `min` or more. Ends the process with 2 for anything else. */
export function wholeNumber(name: string, text: string, min = 1): number {
  const value = Number(text)
  if (Number.isSafeInteger(value) && value >= min) return value
  console.error(`${name} must be a whole number, ${min} or more`)
  process.exit(2)
}
