/* `openapi`: the description of the interface. */

import { description } from '../api/description.ts'

export function run(): string {
  return description().trimEnd()
}
