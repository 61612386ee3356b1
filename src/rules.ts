import { resolve } from 'node:path'
import { reasonOf } from './errors.ts'

/* The kinds of value that an option may have. Every rule here serves any option. */

/** Takes a problem: the name of the option, such as `etcd.prefix`, and what is wrong with it. */
export type Report = (option: string, what: string) => undefined

/** What an option may be. */
export interface Rule<T> {
  /** Checks a value of any type. Returns undefined for a value that was reported. */
  read(value: unknown, option: string, wrong: Report): T | undefined
  /**
   * Makes of a variable's text what an application would pass; without it, that is the text.
   * @throws Error if the text names a file that cannot be read.
   */
  parse?(given: FromVariable): unknown
  /** The value of an option that is not given. */
  readonly fallback?: unknown
  /** The variables that set the option, and what each one means. */
  readonly variables?: Readonly<Record<string, string>>
  /** The rules of an object's members. */
  readonly members?: Readonly<Record<string, Rule<unknown>>>
}

export type Rules<T> = { readonly [K in keyof T]-?: Rule<T[K]> }

/** The text of an environment variable, in the place of an option's value. */
export class FromVariable {
  readonly variable: string
  readonly text: string

  constructor(variable: string, text: string) {
    this.variable = variable
    this.text = text
  }
}

/** An option that environment variables set. The meanings are shown by `--help`. */
export function setting<T>(
  rule: Rule<T>,
  variables: Readonly<Record<`PLANTS_${string}`, string>>,
): Rule<T> {
  return {
    ...rule,
    variables,
    read(value, option, wrong) {
      if (!(value instanceof FromVariable)) return rule.read(value, option, wrong)
      let given: unknown
      try {
        given = rule.parse ? rule.parse(value) : value.text
      } catch (error) {
        return wrong(option, `cannot be read: ${reasonOf(error)}`)
      }
      return rule.read(given, option, wrong)
    },
  }
}

/** What is not given has this value, which must itself be right. */
export function defaultsTo<T>(fallback: unknown, rule: Rule<T>): Rule<T> {
  const read: Rule<T>['read'] = (value = fallback, ...rest) => rule.read(value, ...rest)
  return { ...rule, fallback, read }
}

export function optional<T>(rule: Rule<T>): Rule<T | undefined> {
  return {
    ...rule,
    read: (value, ...rest) => (value === undefined ? undefined : rule.read(value, ...rest)),
  }
}

export function required<T>(why: string, rule: Rule<T>): Rule<T> {
  return {
    ...rule,
    read(value, option, wrong) {
      if (value === undefined) return wrong(option, `is required: ${why}`)
      return rule.read(value, option, wrong)
    },
  }
}

export const text: Rule<string> = {
  read(value, option, wrong) {
    if (typeof value === 'string' && value !== '' && value.isWellFormed()) return value
    return wrong(option, `must be a text that is not empty, and is ${shown(value)}`)
  },
}

/** Resolved when it is read: the working directory may change later. */
export const path: Rule<string> = {
  read(value, option, wrong) {
    const isPath = typeof value === 'string' && value !== '' && value.isWellFormed()
    if (isPath && !value.includes('\0')) return resolve(value)
    return wrong(option, `must be a path, and is ${shown(value)}`)
  },
}

/** An integer from `min` to `max`, both included. */
export function integer(min: number, max: number): Rule<number> {
  return {
    parse: ({ text }) => (/^[0-9]{1,15}$/.test(text) ? Number(text) : text),
    read(value, option, wrong) {
      const isInteger = typeof value === 'number' && Number.isInteger(value)
      if (isInteger && value >= min && value <= max) return value
      return wrong(option, `must be an integer from ${min} to ${max}, and is ${shown(value)}`)
    },
  }
}

export function oneOf<T extends string>(values: readonly T[]): Rule<T> {
  return {
    read(value, option, wrong) {
      const found = values.find((each) => each === value)
      return found ?? wrong(option, `must be one of ${values.join(', ')}, and is ${shown(value)}`)
    },
  }
}

/** An object with a rule for each member. A member that is undefined counts as not given. */
export function members<T>(rules: Rules<T>): Rule<T> {
  return {
    members: rules,
    read(value, option, wrong) {
      const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
      if (!isObject) return wrong(option, 'must be an object')
      const given = new Map<string, unknown>(Object.entries(value))
      const nameOf = (member: string): string => (option === '' ? member : `${option}.${member}`)
      for (const [member, each] of given) {
        if (each === undefined || Object.hasOwn(rules, member)) continue
        const isMeant = (known: string): boolean => known.toLowerCase() === member.toLowerCase()
        const meant = Object.keys(rules).find(isMeant)
        const hint = meant === undefined ? '' : `: it is ${nameOf(meant)}`
        wrong(nameOf(member), `is not known${hint}`)
      }
      const read = Object.entries<Rule<unknown>>(rules).map(
        ([member, rule]) => [member, rule.read(given.get(member), nameOf(member), wrong)] as const,
      )
      // Each member has its rule's type. One that was reported is undefined: then the configuration
      // is not used.
      return Object.fromEntries(read) as T
    },
  }
}

/** A value in a few words. The content of an object is not shown: it may be a secret. */
export function shown(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value)
  if (Array.isArray(value)) return 'a list'
  if (typeof value === 'symbol' || typeof value === 'function') return `a ${typeof value}`
  return typeof value === 'object' && value !== null ? 'an object' : String(value)
}
