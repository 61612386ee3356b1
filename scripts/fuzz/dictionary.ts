import words from './dictionary.json' with { type: 'json' }

type Words = [string, ...string[]]

/**
 * Text that two readers may take differently, by where it is used. All is latin1, one character a
 * byte, except names and values of members, which are encoded as UTF-8.
 *
 * - `targets`: `{path}` is the path of any operation.
 * - `noRequests`: what is not one whole request.
 * - `pieces`: what a mutation puts anywhere.
 * - `lookalikes`: names that some comparison takes for one another: by case, by form, or by what is
 *   cut off.
 */
// The type of a JSON file does not say that its lists have members. All of these have.
export const dictionary = words as Readonly<Record<keyof typeof words, Words>>
