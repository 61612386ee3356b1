export type Schema = Readonly<Record<string, unknown>>

const TYPES: Readonly<Record<string, (value: unknown) => boolean>> = {
  object: isObject,
  array: Array.isArray,
  string: (value) => typeof value === 'string',
  integer: Number.isInteger,
}

/** [lowest, first above]: both are exact as doubles. */
const RANGES: Readonly<Record<string, readonly [number, number]>> = {
  int32: [-(2 ** 31), 2 ** 31],
  int64: [-(2 ** 63), 2 ** 63],
}

/**
 * How a value breaks a JSON schema; empty if it fits. Knows the keywords that the project's
 * document uses. `closed`: members that the schema does not name are flaws too. @throws Error for
 * any other keyword, which would otherwise be ignored.
 */
export function flaws(
  document: unknown,
  schema: Schema,
  value: unknown,
  closed = false,
  at = '$',
): readonly string[] {
  return Object.entries(schema).flatMap(([keyword, wanted]) => {
    const flaw = (wrong: boolean): readonly string[] =>
      wrong ? [`${at} breaks ${keyword} ${JSON.stringify(wanted)}: ${JSON.stringify(value)}`] : []
    switch (keyword) {
      case 'description':
        return []
      case '$ref':
        return flaws(document, schemaOf(resolve(document, String(wanted))), value, closed, at)
      case 'allOf':
        // Each part knows some members only.
        return schemasOf(wanted).flatMap((part) => flaws(document, part, value, false, at))
      case 'type':
        return flaw(!(TYPES[String(wanted)] ?? unknownTo(keyword, wanted))(value))
      case 'format': {
        const [lowest, above] = RANGES[String(wanted)] ?? unknownTo(keyword, wanted)
        return flaw(typeof value === 'number' && (value < lowest || value >= above))
      }
      case 'const':
        return flaw(value !== wanted)
      case 'minimum':
        return flaw(typeof value === 'number' && value < Number(wanted))
      case 'minLength':
        return flaw(typeof value === 'string' && value.length < Number(wanted))
      case 'pattern':
        return flaw(typeof value === 'string' && !new RegExp(String(wanted), 'u').test(value))
      case 'required':
        return flaw(
          isObject(value) &&
            !(Array.isArray(wanted) ? wanted : unknownTo(keyword, wanted)).every((name) =>
              Object.hasOwn(value, String(name)),
            ),
        )
      case 'items':
        return Array.isArray(value)
          ? value.flatMap((item: unknown, i) =>
              flaws(document, schemaOf(wanted), item, closed, `${at}[${i}]`),
            )
          : []
      case 'properties': {
        if (!isObject(value)) return []
        const named = schemaOf(wanted)
        return Object.entries(value).flatMap(([name, member]) => {
          if (Object.hasOwn(named, name))
            return flaws(document, schemaOf(named[name]), member, closed, `${at}.${name}`)
          return closed ? [`${at}.${name} is not described`] : []
        })
      }
      default:
        return unknownTo(keyword, wanted)
    }
  })
}

/** What a local reference ("#/a/b") points at. @throws Error if there is nothing. */
export function resolve(document: unknown, reference: string): unknown {
  const [start, ...names] = reference.split('/')
  if (start !== '#') throw new Error(`not a local reference: ${reference}`)
  return names.reduce<unknown>((found, name) => {
    if (!isObject(found) || !Object.hasOwn(found, name))
      throw new Error(`a dangling reference: ${reference}`)
    return found[name]
  }, document)
}

/**
 * A part of a document with what its references point at in their place. Schemas stay references:
 * `flaws` follows them.
 */
export function inlined(document: unknown, part = document): unknown {
  if (Array.isArray(part)) return part.map((each: unknown) => inlined(document, each))
  if (!isObject(part)) return part
  const { $ref } = part
  if (typeof $ref === 'string' && !$ref.startsWith('#/components/schemas/'))
    return inlined(document, resolve(document, $ref))
  const members = Object.entries(part).map(([name, each]) => [name, inlined(document, each)])
  return Object.fromEntries(members)
}

export function isObject(value: unknown): value is Schema {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function schemaOf(value: unknown): Schema {
  if (!isObject(value)) throw new Error(`no schema: ${JSON.stringify(value)}`)
  return value
}

function schemasOf(value: unknown): readonly Schema[] {
  return Array.isArray(value) ? value.map(schemaOf) : unknownTo('allOf', value)
}

function unknownTo(keyword: string, wanted: unknown): never {
  throw new Error(`the checker does not know ${keyword} ${JSON.stringify(wanted)}`)
}
