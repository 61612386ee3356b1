/*
 * What a terminal would obey instead of showing it, or what makes a text look like another: C0,
 * DEL, C1, marks of direction, line separators, a character of no width, and half a surrogate pair.
 */
const UNITS = [
  '001b 000a 007f 0085 009b 009d 061c 200b 200e 200f 2028 2029 202a 202b 202c 202d 202e',
  '2066 2067 2068 2069 feff d83c',
]
  .join(' ')
  .split(' ')

export const HOSTILE = `é${UNITS.map((unit) => String.fromCharCode(parseInt(unit, 16))).join('')}🌱`

/** The same as people should see it. */
export const HOSTILE_ESCAPED = `é${UNITS.map((unit) => `\\u${unit}`).join('')}🌱`

/** What none of our lines may hold, besides the newline at its end. */
export const UNSAFE = /[^\P{C}\n]|[\u2028\u2029]/u
