import { readFileSync } from 'node:fs'

type Words = readonly [string, ...string[]]

/**
 * Text that two readers may take differently, by where it is used. All is latin1, one character a
 * byte, except names and values of members, which are encoded as UTF-8.
 */
interface Dictionary {
  readonly contentTypes: Words
  readonly targets: Words
  readonly headers: Words
  readonly queries: Words
  /** What is not one whole request. */
  readonly noRequests: Words
  readonly schemes: Words
  readonly tokenEnds: Words
  readonly chunkSizes: Words
  readonly trailers: Words
  readonly versions: Words
  readonly hosts: Words
  readonly noIds: Words
  readonly noStrings: Words
  readonly alphabets: Words
  readonly otherMembers: Words
  readonly values: Words
  readonly repeatedMembers: Words
  readonly noPlants: Words
  readonly noUtf8: Words
  readonly afterJson: Words
  /** What a mutation puts anywhere. */
  readonly pieces: Words
  /** Names that some comparison takes for one another: by case, by form, or by what is cut off. */
  readonly lookalikes: Words
}

const file = new URL('dictionary.json', import.meta.url)
// The file beside this one, which has these members.
export const dictionary = JSON.parse(readFileSync(file, 'utf8')) as Dictionary
