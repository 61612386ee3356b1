import { resolve } from 'node:path'

/* The kinds of value that an option may have. Every rule here serves any option. */

/** Takes a problem: the name of an option, such as `etcd.prefix`, and what is wrong with it. */
export type Report = (option: string, what: string) => undefined

/** What an option may be. */
export interface Rule<T> {
  /** Checks a value of any type. Returns undefined for a value that was reported. */
  (value: unknown, option: string, wrong: Report): T | undefined
  /** The value of an option that is not given. */
  readonly fallback?: unknown
  /** The rules of an object's members. */
  readonly members?: Readonly<Record<string, Rule<unknown>>>
  /** The variables that set the option, and what each one means. */
  readonly variables?: Readonly<Record<string, string>>
  /**
   * Makes of a variable's text what an application would pass. By default, that is the text.
   * @throws Error if the text names a file that cannot be read.
   */
  readonly parse?: (text: string, variable: string) => unknown
}

export type Rules<T> = { readonly [K in keyof T]-?: Rule<T[K]> }

/** In the place of a value that was already reported. */
export const REPORTED = Symbol('reported')

/** An option that environment variables set. */
export function setting<T>(
  rule: Rule<T>,
  variables: Readonly<Record<`PLANTS_${string}`, string>>,
): Rule<T> {
  const read: Rule<T> = (value, ...rest) => (value === REPORTED ? undefined : rule(value, ...rest))
  return Object.assign(read, rule, { variables })
}

/** What is not given has this value, which must itself be right. */
export function defaultsTo<T>(fallback: unknown, rule: Rule<T>): Rule<T> {
  const read: Rule<T> = (value = fallback, ...rest) => rule(value, ...rest)
  return Object.assign(read, rule, { fallback })
}

export function optional<T>(rule: Rule<T>): Rule<T | undefined> {
  const read: Rule<T | undefined> = (value, ...rest) =>
    value === undefined ? undefined : rule(value, ...rest)
  return Object.assign(read, rule)
}

export function required<T>(why: string, rule: Rule<T>): Rule<T> {
  const read: Rule<T> = (value, option, wrong) =>
    value === undefined ? wrong(option, `is required: ${why}`) : rule(value, option, wrong)
  return Object.assign(read, rule)
}

/** `parse` makes of a variable's text what an application would pass. */
export function parsedBy<T>(parse: Rule<T>['parse'], rule: Rule<T>): Rule<T> {
  const read: Rule<T> = (...given) => rule(...given)
  return Object.assign(read, rule, { parse })
}

/** A text of valid Unicode that passes a check. `what` is what the text must be. */
export function textThat(what: string, isRight: (text: string) => boolean): Rule<string> {
  return (value, option, wrong) => {
    if (typeof value === 'string' && value.isWellFormed() && isRight(value)) return value
    return wrong(option, `must ${what}, and is ${shown(value)}`)
  }
}

export const text = textThat('be a text that is not empty', (given) => given !== '')

const anyPath = textThat('be a path', (given) => given !== '' && !given.includes('\0'))

/** Resolved when it is read: the working directory may change later. */
export const path: Rule<string> = (...given) => {
  const found = anyPath(...given)
  return found === undefined ? undefined : resolve(found)
}

/** An integer from `min` to `max`, both included. */
export function integer(min: number, max: number): Rule<number> {
  const parse = (digits: string) => (/^[0-9]{1,15}$/.test(digits) ? Number(digits) : digits)
  return parsedBy(parse, (value, option, wrong) => {
    const isInteger = typeof value === 'number' && Number.isInteger(value)
    if (isInteger && value >= min && value <= max) return value
    return wrong(option, `must be an integer from ${min} to ${max}, and is ${shown(value)}`)
  })
}

export function oneOf<T extends string>(values: readonly T[]): Rule<T> {
  return (value, option, wrong) => {
    const found = values.find((each) => each === value)
    return found ?? wrong(option, `must be one of ${values.join(', ')}, and is ${shown(value)}`)
  }
}

/** An object with a rule for each member. A member that is undefined counts as not given. */
export function members<T>(rules: Rules<T>): Rule<T> {
  const read: Rule<T> = (value, option, wrong) => {
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
    if (!isObject) return wrong(option, 'must be an object')
    const given = new Map<string, unknown>(Object.entries(value))
    const nameOf = (member: string): string => (option === '' ? member : `${option}.${member}`)
    for (const [member, each] of given) {
      if (each === undefined || Object.hasOwn(rules, member)) continue
      const meant = Object.keys(rules).find((known) => isLike(member, known))
      const hint = meant === undefined ? '' : `: did you mean ${nameOf(meant)}?`
      wrong(nameOf(member), `is not known${hint}`)
    }
    const entries = Object.entries<Rule<unknown>>(rules).map(
      ([member, rule]) => [member, rule(given.get(member), nameOf(member), wrong)] as const,
    )
    // Each member has its rule's type. If one is undefined because it was reported, the
    // configuration is not used.
    return Object.fromEntries(entries) as T
  }
  return Object.assign(read, { members: rules })
}

/** True if the known name begins with the written one, or few letters differ, in any case. */
function isLike(written: string, known: string): boolean {
  const [a, b] = [written.toLowerCase(), known.toLowerCase()]
  if (a.length >= 4 && b.startsWith(a)) return true
  return canMake(b, a, Math.min(2, Math.ceil(known.length / 4)))
}

/** True if at most so many letters inserted, removed or replaced make `b` of `a`. */
function canMake(a: string, b: string, edits: number): boolean {
  if (a === b) return true
  const [restOfA, restOfB] = [a.slice(1), b.slice(1)]
  if (a[0] === b[0]) return canMake(restOfA, restOfB, edits)
  const ways = [[restOfA, b] as const, [a, restOfB] as const, [restOfA, restOfB] as const]
  return edits > 0 && ways.some((way) => canMake(...way, edits - 1))
}

/** A value in a few words. Texts and objects are not shown: they may be a misplaced secret. */
export function shown(value: unknown): string {
  if (value === '') return 'empty'
  if (typeof value === 'string')
    return value.isWellFormed() ? `a text of length ${value.length}` : 'not valid Unicode'
  if (Array.isArray(value)) return 'a list'
  if (typeof value === 'symbol' || typeof value === 'function') return `a ${typeof value}`
  return typeof value === 'object' && value !== null ? 'an object' : String(value)
}
