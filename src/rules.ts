import { resolve } from 'node:path'

/* What an option may be. A rule reads a value, which may be anything, and reports what is wrong. */

/** Is told what is wrong with an option, by the option's name: `etcd.prefix`, `must end in /`. */
export type Report = (name: string, what: string) => undefined

/** Undefined where something was reported: the whole is not used then. */
export type Rule<T> = (value: unknown, name: string, wrong: Report) => T | undefined
export type Rules<T> = { readonly [K in keyof T]-?: Rule<T[K]> }

/** Stands for a value that was reported before. */
export const REPORTED = Symbol('reported')

export const text: Rule<string> = (value, name, wrong) => {
  if (typeof value === 'string' && value !== '' && value.isWellFormed()) return value
  return wrong(name, `must be a text that is not empty, and is ${shown(value)}`)
}

/** Resolved here, once: the working directory may change later. */
export const path: Rule<string> = (value, name, wrong) => {
  const isPath = typeof value === 'string' && value !== '' && value.isWellFormed()
  if (isPath && !value.includes('\0')) return resolve(value)
  return wrong(name, `must be a path, and is ${shown(value)}`)
}

/** An integer within bounds, ends included. */
export function integer([min, max]: readonly [min: number, max: number]): Rule<number> {
  return (value, name, wrong) => {
    const isInteger = typeof value === 'number' && Number.isInteger(value)
    if (isInteger && value >= min && value <= max) return value
    return wrong(name, `must be an integer from ${min} to ${max}, and is ${shown(value)}`)
  }
}

export function oneOf<T extends string>(values: readonly T[]): Rule<T> {
  return (value, name, wrong) => {
    const found = values.find((each) => each === value)
    return found ?? wrong(name, `must be one of ${values.join(', ')}, and is ${shown(value)}`)
  }
}

export function optional<T>(rule: Rule<T>): Rule<T | undefined> {
  return (value, name, wrong) => (value === undefined ? undefined : rule(value, name, wrong))
}

export function required<T>(why: string, rule: Rule<T>): Rule<T> {
  return (value, name, wrong) =>
    value === undefined ? wrong(name, `is required: ${why}`) : rule(value, name, wrong)
}

/** An object with a rule for each member. A member that is undefined counts as not given. */
export function members<T>(rules: Rules<T>): Rule<T> {
  return (value, name, wrong) => {
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
    if (!isObject) return wrong(name, 'must be an object')
    const nameOf = (member: string): string => (name === '' ? member : `${name}.${member}`)
    const given = new Map<string, unknown>(Object.entries(value))
    for (const [member, each] of given) {
      if (each === undefined || Object.hasOwn(rules, member)) continue
      const sameLetters = (known: string): boolean => known.toLowerCase() === member.toLowerCase()
      const meant = Object.keys(rules).find(sameLetters)
      wrong(nameOf(member), `is not known${meant === undefined ? '' : `: it is ${nameOf(meant)}`}`)
    }
    const read = Object.entries<Rule<unknown>>(rules).map(([member, rule]) => {
      const each = given.get(member)
      if (each === REPORTED) return [member, undefined] as const
      return [member, rule(each, nameOf(member), wrong)] as const
    })
    // Each member is what its rule returned: undefined, where it may not be, only after a report.
    return Object.fromEntries(read) as T
  }
}

/** A value in a few words. The content of an object is not shown: it may be a secret. */
export function shown(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value)
  if (Array.isArray(value)) return 'a list'
  if (typeof value === 'symbol' || typeof value === 'function') return `a ${typeof value}`
  return typeof value === 'object' && value !== null ? 'an object' : String(value)
}
