/** A plant as clients see it. */
export interface Plant {
  readonly name: string
  readonly tag?: string
}

/** A plant to create. `id` is an int64; a number would be exact only up to 2^53. */
export interface NewPlant extends Plant {
  readonly id: bigint
}

export const INT64_MIN = -(2n ** 63n)
export const INT64_MAX = 2n ** 63n - 1n

export function isInt64(value: unknown): value is bigint {
  return typeof value === 'bigint' && value >= INT64_MIN && value <= INT64_MAX
}

/** A string that UTF-8 can encode: one with a lone surrogate would not come back unchanged. */
function isText(value: unknown): value is string {
  return typeof value === 'string' && value.isWellFormed()
}

/**
 * Reads a plant from the members of a JSON object, or returns which of them is missing or wrong.
 * Members of other names are ignored.
 */
export function readNewPlant(members: ReadonlyMap<string, unknown>): NewPlant | keyof NewPlant {
  const name = members.get('name')
  const id = members.get('id')
  if (!isText(name)) return 'name'
  if (!isInt64(id)) return 'id'
  if (!members.has('tag')) return { id, name }
  const tag = members.get('tag')
  return isText(tag) ? { id, name, tag } : 'tag'
}
