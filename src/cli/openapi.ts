/* `openapi`: the description of the interface. */

import { description } from '../api/description.ts'

export const run = (): string => description().trimEnd()
